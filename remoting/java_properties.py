"""Java's properties text and its settings: `broker.conf`, and the bodies of the configuration requests (25, 26, 318, 319).

One entry a line, key and value parted by `=`, `:` or white space; `#` and `!` begin comments; a backslash joins lines and
escapes. The last entry of a key wins. What Java forgives is forgiven here. It refuses a Unicode escape without four hex digits,
and so does this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import BadProperties, BadSetting

PROPERTIES_BYTES_MAX = 32 * 1024
"""The largest body of a request that changes settings, which is read on the event loop. A whole broker.conf is smaller."""

_LINE = re.compile(r"\r\n|\r|\n")
_SPACE = " \t\f"
_ESCAPE = re.compile(r"\\(u.{0,4}|.)", re.DOTALL)
_HEX = re.compile(r"u[0-9a-fA-F]{4}")
_SURROGATES = re.compile(r"[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
"""Replaces an unpaired surrogate, which no encoding can express."""
_PLAIN = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str) -> dict[str, str]:
    r"""Read entries in order of appearance.

    >>> read_properties("# a broker\nlistenPort = 10911\nnamesrvAddr=a:9876;b:9876")
    {'listenPort': '10911', 'namesrvAddr': 'a:9876;b:9876'}

    Raises:
        BadProperties: a Unicode escape does not have four hex digits.
    """
    entries: dict[str, str] = {}
    for line in _logical_lines(text):
        key_end = _key_end(line)
        value = line[key_end:].lstrip(_SPACE)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_SPACE)
        entries[_unescape(line[:key_end])] = _unescape(value)
    return entries


def write_properties(entries: Mapping[str, str]) -> str:
    """Write one `key=value` line per entry, escaped so that `read_properties` and Java read it back."""
    return "".join(f"{_escape(key, ' =:#!')}={_escape(value, '')}\n" for key, value in entries.items())


def _logical_lines(text: str) -> Iterator[str]:
    held: list[str] = []
    for natural in _LINE.split(text):
        line = natural.lstrip(_SPACE)
        if not held and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:  # an even number escapes itself
            held.append(line[:-1])
            continue
        yield "".join((*held, line))
        held.clear()
    if any(held):
        yield "".join(held)


def _key_end(line: str) -> int:
    at = 0
    while at < len(line) and line[at] not in "=:" and line[at] not in _SPACE:
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    # Java's characters are UTF-16, so that one outside the first plane is escaped as a pair of surrogates.
    return _SURROGATES.sub(_joined, _ESCAPE.sub(_unescaped, text))


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] != "u":
        return _PLAIN.get(escape, escape)
    if not _HEX.fullmatch(escape):
        raise BadProperties(f"\\{escape} is not a Unicode escape, which has four hex digits")
    return chr(int(escape[1:], 16))


def _joined(match: re.Match[str]) -> str:
    pair = match[0]
    return pair.encode("utf-16", "surrogatepass").decode("utf-16") if len(pair) == 2 else _REPLACEMENT


def _escape(text: str, special: str) -> str:
    escaped = text.replace("\\", "\\\\")
    for plain, letter in (("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"), ("\f", "\\f")):
        escaped = escaped.replace(plain, letter)
    for character in special:
        escaped = escaped.replace(character, f"\\{character}")
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


SHOWN_NOT = "…"
"""Stands in errors for a value that may be a secret: that of a key that is misspelt, or of a text that cannot be read."""


def refuse_misspelt(key: str, known: Iterable[str], error: type[BadSetting]) -> None:
    """Refuse an unknown key that differs from one of `known` by its case, or by one letter or two that changed places.

    No key of RocketMQ's that is unknown here is that near to another one.

    Raises:
        BadSetting: the key is misspelt.
    """
    plain = key.lower()
    for each in known:
        other = each.lower()
        if key != each and (plain == other or _one_typing_error(plain, other)):
            raise error(key, SHOWN_NOT, f"spelt {each}, or left out: RocketMQ has no such key, and it would be ignored")


def _one_typing_error(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    at = next((at for at, (left, right) in enumerate(zip(shorter, longer, strict=False)) if left != right), len(shorter))
    if len(longer) - len(shorter) == 1:
        return shorter[at:] == longer[at + 1 :]
    changed, into = shorter[at : at + 2], longer[at : at + 2]
    return len(shorter) == len(longer) and (
        shorter[at + 1 :] == longer[at + 1 :] or (changed == into[::-1] and shorter[at + 2 :] == longer[at + 2 :])
    )


def setting_text(value: object) -> str:
    """A setting as a file of properties has it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def setting_value(key: str, text: str, default: object, bounds: Mapping[str, tuple[int, int]], error: type[BadSetting]) -> Any:
    """The value of a setting, of the kind that its default has: a switch, a number within the bounds of the key, or a text.

    Raises:
        BadSetting: the text is no such value.
    """
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise error(key, text, "true or false")
        return text.lower() == "true"
    if isinstance(default, int):
        least, most = bounds[key]
        if not text.isascii() or not text.isdigit() or len(text) > 10 or not least <= int(text) <= most:
            raise error(key, text, f"a number from {least} to {most}")
        return int(text)
    return text
