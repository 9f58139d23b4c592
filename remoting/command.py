"""One remoting command: a request or a response, and its header in both encodings (RocketMQ RemotingCommand).

The header of a JSON command is one object; that of a binary (`ROCKETMQ`) command is a fixed part and length-prefixed strings.
A reader accepts both; an answer has the encoding of its request. Headers may deviate from JSON as far as fastjson accepts it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Any, cast

import msgspec
import orjson

from ..message.numbers import INT_MAX, INT_MIN, long_of
from ..world.logs import shortened
from .binary_header import decode_header, encode_header
from .codes import ResponseCode
from .errors import LocalProtocolError, RemoteProtocolError, RequestRefused

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

PROTOCOL_VERSION = 409
"""V4_9_8, the version in our frames: late enough for every client, and before the features of 5.x brokers that are not here."""

FRAME_SIZE_MAX = 16 * 1024 * 1024
"""The largest frame with its length prefix, in both directions (Java's `frameMaxLength`)."""

HEADER_SIZE_MAX = 256 * 1024
"""The largest header of a frame, in both directions, because one turn of the event loop decodes it. The longest headers of
clients hold the properties of a message, at most 32 KiB, and JSON may write each of their characters with six."""

REMARK_CHARACTERS_MAX = 1000
"""Longer remarks are truncated, because most quote the request, which may have megabytes."""


class Wire(IntEnum):
    """Header encodings, by their type byte."""

    JSON = 0
    BINARY = 1


# These are used for every frame; looking a member up in its class, or comparing with one, takes three times as long.
_WIRE_JSON, _WIRE_BINARY = Wire.JSON, Wire.BINARY
_JSON, _BINARY = int(Wire.JSON), int(Wire.BINARY)

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip
_LANGUAGE_OF = dict(enumerate(LANGUAGES))
_LANGUAGE_CODES = {name: code for code, name in _LANGUAGE_OF.items()}
OUR_LANGUAGE = "PYTHON"
OUR_LANGUAGE_CODE = _LANGUAGE_CODES[OUR_LANGUAGE]

FRAME_HEAD = struct.Struct(">iI")
"""The length of the rest of the frame; then the header's encoding in the highest byte, and the header's length."""


class RemotingCommand(msgspec.Struct, eq=False, gc=False, rename={"ext": "extFields"}):
    """A request or a response.

    `ext` holds the header's fields, text to text; `body` is b"" if there is none. It is a msgspec structure, so that one step
    checks and decodes a JSON header, once per message.
    """

    code: int
    ext: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str | None = OUR_LANGUAGE
    version: int = PROTOCOL_VERSION
    wire: Wire = Wire.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def response(
        self,
        code: int = ResponseCode.SUCCESS,
        ext: Mapping[str, Any] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> RemotingCommand:
        """Create the answer to this request; values of `ext` become text, and those that are None are left out."""
        if remark is not None and len(remark) > REMARK_CHARACTERS_MAX:
            remark = shortened(remark, REMARK_CHARACTERS_MAX)
        return RemotingCommand(code, wire_fields(ext or {}), body, self.opaque, RESPONSE_FLAG, remark, wire=self.wire)

    def text(self, name: str, default: str | None = None) -> str:
        """A text field.

        Raises:
            RequestRefused: the field is absent and has no default.
        """
        value = self.ext.get(name, default)
        if value is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {self.code} lacks the field {name!r}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """An int or long field; this bounds the numbers of all requests to 64 bits.

        Raises:
            RequestRefused: not a number of 64 bits, or absent without a default.
        """
        value = self.ext.get(name)
        if value is None:
            if default is None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {self.code} lacks the field {name!r}")
            return default
        try:
            return long_of(value)
        except ValueError:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"request {self.code}: the field {name!r} is not a number of 64 bits (got {shortened(repr(value), 50)})",
            ) from None

    def boolean(self, name: str, *, default: bool = False) -> bool:
        """A boolean field; as Java reads it, anything but `true` is false."""
        value = self.ext.get(name)
        return default if value is None else value.lower() == "true"


def wire_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert Python values to header fields: booleans in lower case, numbers in decimal, None left out."""
    return {
        name: value if type(value) is str else ("true" if value else "false") if type(value) is bool else str(value)
        for name, value in values.items()
        if value is not None
    }


def encode_frame(command: RemotingCommand) -> bytes:
    """Encode a whole frame.

    Raises:
        LocalProtocolError: the frame is larger than `FRAME_SIZE_MAX`, for which the peer would close the connection.
    """
    header = _encode_json(command) if command.wire is Wire.JSON else _encode_binary(command)
    return frame_of(command.wire, header, command.body)


def frame_of(wire: int, header: bytes, body: bytes = b"") -> bytes:
    """Join length, header word, encoded header and body to a frame."""
    size = 4 + len(header) + len(body)
    if size + 4 > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"a frame of {size + 4} bytes is larger than the limit of {FRAME_SIZE_MAX}")
    return b"".join((FRAME_HEAD.pack(size, wire << 24 | len(header)), header, body))


def frame_start(header_size: int, body_size: int = 0) -> bytes:
    """The bytes before the JSON header of a frame."""
    return FRAME_HEAD.pack(4 + header_size + body_size, header_size)


def answer_template(ext: bytes, *, remark: bool = False) -> bytes:
    """Create a template of the JSON header of an answer, for answers that are too frequent to be encoded one by one.

    Args:
        ext: the fields as JSON, with a conversion of Python's `%` for each value.
        remark: whether the answer has one.

    The template takes the code, the values of `ext`, the opaque and, if there is one, the remark.
    """
    return (
        b'{"code":%%d,"extFields":{%b},"flag":%d,"language":"%b","opaque":%%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
        % (ext, RESPONSE_FLAG, OUR_LANGUAGE.encode(), b'"remark":"%b",' if remark else b"", PROTOCOL_VERSION)
    )


def _encode_json(command: RemotingCommand) -> bytes:
    header: dict[str, Any] = {
        "code": int(command.code),
        "extFields": command.ext,
        "flag": command.flag,
        "language": command.language or OUR_LANGUAGE,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return orjson.dumps(header)


def _encode_binary(command: RemotingCommand) -> bytes:
    language = _LANGUAGE_CODES.get(command.language or OUR_LANGUAGE, _LANGUAGE_CODES["OTHER"])
    head = (command.code, language, command.version, command.opaque, command.flag)
    return encode_header(head, command.remark, command.ext)


def decode_command(wire: int, header: bytes, body: bytes) -> RemotingCommand:
    """Decode the parts of a frame.

    Raises:
        RemoteProtocolError: the encoding is unknown, or the header cannot be decoded.
    """
    if wire == _JSON:
        return _decode_json(header, body)
    if wire == _BINARY:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"header encoding {wire} is neither JSON (0) nor binary (1)")


_JavaInt = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]


class _Received(RemotingCommand):
    """A received header: the meaning of absent keys, and the range of numbers, which the answer repeats."""

    code: _JavaInt = 0
    opaque: _JavaInt = 0
    flag: _JavaInt = 0
    language: str | None = None
    version: _JavaInt = 0


_decode_strictly = msgspec.json.Decoder(_Received).decode


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        command: RemotingCommand = _decode_strictly(header)
    except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: bytes that are not UTF-8
        command = _decode_leniently(header)
    # A key of the header may have the name of one of our fields; these two must not come from it.
    command.body = body
    command.wire = _WIRE_JSON
    return command


def _decode_leniently(header: bytes) -> RemotingCommand:
    try:
        value: Any = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise RemoteProtocolError(f"header is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"header is not a JSON object but {type(value).__name__}")
    get = cast("Mapping[str, Any]", value).get
    ext: Any = get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise RemoteProtocolError(f"extFields is not a JSON object but {type(ext).__name__}")
    code, opaque, flag, version = (get(name, 0) for name in ("code", "opaque", "flag", "version"))
    if not all(type(number) is int and INT_MIN <= number <= INT_MAX for number in (code, opaque, flag, version)):
        raise RemoteProtocolError("code, opaque, flag and version of a header are integers of 32 bits")
    remark, language = get("remark"), get("language")
    if type(language) is int:  # fastjson takes the position in the enumeration
        language = _LANGUAGE_OF.get(language)
    return RemotingCommand(
        code,
        _texts(cast("Mapping[str, Any]", ext or {})),
        b"",
        opaque,
        flag,
        remark if type(remark) is str else None,
        language if type(language) is str else None,
        version,
    )


def _texts(ext: Mapping[str, Any]) -> dict[str, str]:
    # fastjson turns numbers and booleans into their text and leaves nulls out.
    if any(isinstance(value, dict | list) for value in ext.values()):
        raise RemoteProtocolError("values of extFields are texts")
    return wire_fields(ext)


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    (code, language, version, opaque, flag), remark, fields = decode_header(header)
    return RemotingCommand(code, fields, body, opaque, flag, remark, _LANGUAGE_OF.get(language), version, _WIRE_BINARY)
