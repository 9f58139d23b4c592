"""Write `docs/events.md`: every event that the code logs, with its level, its fields and where it is logged.

`python docs/events.py` writes the page; with `--check` it only tells, by its status, whether the page is up to date. It also
refuses event names that are not literals, for such events could not be listed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).with_name("events.md")
PACKAGES = ("world", "message", "remoting", "store", "ha", "client", "namesrv", "broker", "testing", "cli")
LOGGERS = ("log", "events")
LEVELS = ("error", "warning", "info", "debug")

_INTRODUCTION = """# Events

Made by `python docs/events.py` from the code; do not edit. error = a person must act, warning = degraded, info = state changed,
debug = one message or connection.

| event | level | fields | where |
|---|---|---|---|
"""

Event = tuple[str, str, str, str]


def _bound(path: Path) -> list[str]:
    """The fields that `bind` adds to the loggers of a file's objects, or else to those of its folder's objects."""
    for sources in ([path], sorted(path.parent.glob("*.py"))):
        calls = (node for source in sources for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
        for node in calls:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"{logger}.bind" for logger in LOGGERS}:
                return [keyword.arg for keyword in node.keywords if keyword.arg]
    return []


def _events(path: Path) -> Iterator[Event]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in LEVELS:
            continue
        logger = node.func.value
        name = logger.id if isinstance(logger, ast.Name) else logger.attr if isinstance(logger, ast.Attribute) else ""
        if name.removeprefix("_") not in LOGGERS or not node.args:
            continue
        names = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if not names or not isinstance(node.args[0], ast.Constant | ast.IfExp):
            sys.exit(f"{path}:{node.lineno}: the event name is not a literal")
        given = [keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg != "exc_info"]
        bound = _bound(path) if isinstance(logger, ast.Attribute) else []
        fields = ", ".join(f"`{field}`" for field in (*bound, *given))
        for name in names:
            yield str(name.value), node.func.attr, fields, path.relative_to(ROOT).as_posix()


def page() -> str:
    """The whole page."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    rows = sorted({event for path in paths for event in _events(path)})
    return _INTRODUCTION + "".join(f"| `{name}` | {level} | {fields} | {where} |\n" for name, level, fields, where in rows)


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the code logs: run python {__file__}")


if __name__ == "__main__":
    main()
