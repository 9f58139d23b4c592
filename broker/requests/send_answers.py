"""Answers to sends, made from templates: one for JSON headers, and for binary headers one per queue, made when needed.

Answers to sends that have created a topic are held until the name servers know it, so that the sender may ask for its route.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Awaitable, Callable

import attrs
import orjson

from ...remoting.binary_header import OPAQUE_AT, encode_field, frame_head
from ...remoting.command import (
    OUR_LANGUAGE_CODE,
    PROTOCOL_VERSION,
    RESPONSE_FLAG,
    RemotingCommand,
    Wire,
    answer_template,
    frame_start,
    wire_fields,
)

_WIRE_JSON = Wire.JSON
_OPAQUE = struct.Struct(">i")
_pack_opaque = _OPAQUE.pack
_TEMPLATES_MAX = 1024
"""The most templates of binary headers; all are removed before another one is made."""

Push = Callable[[bytes], None]
"""Sends the frames of answers to a peer."""

_Template = tuple[bytes, int, int]
"""A format for opaque, physical offset and queue offset, and the range of queue offsets with its number of digits."""
_CONVERSION = re.compile(rb"%d|%016X")
_Parts = tuple[tuple[bytes, bytes, bytes, bytes, bytes], tuple[bytes, bytes, bytes, bytes]]
_NO_TEMPLATE: _Template = (b"", 0, 0)


@attrs.define(eq=False)
class SendAnswers:
    """Makes the answers of one broker."""

    region: str
    trace_on: bool
    message_id_start: str
    """The beginning of this broker's message ids, which is its address in hexadecimal."""
    _json: bytes = attrs.field(init=False)
    _templates: dict[tuple[int, int], _Template] = attrs.field(factory=dict[tuple[int, int], _Template])
    """The templates of binary headers, by code and queue id."""
    _parts: dict[int, _Parts] = attrs.field(factory=dict[int, "_Parts"])

    def __attrs_post_init__(self) -> None:
        self._json = self._json_template()

    def _json_template(self) -> bytes:
        region = orjson.dumps(self.region).replace(b"%", b"%%")
        trace_on = b"true" if self.trace_on else b"false"
        return answer_template(
            b'"MSG_REGION":%b,"TRACE_ON":"%b","msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d"'
            % (region, trace_on, self.message_id_start.encode())
        )

    def _binary_template(self, code: int, queue_id: int, queue_offset: int) -> _Template:
        """Make the template of a queue for offsets with as many digits as `queue_offset`."""
        digits = len(str(queue_offset))
        fields = wire_fields(self.fields(self.message_id(0), queue_id, "0" * digits))
        region, trace_on, message_id, queue, offset = (encode_field(name, value.encode()) for name, value in fields.items())
        before_id = region + trace_on + message_id[:-16]
        before_offset = queue + offset[:-digits]
        size = len(before_id) + 16 + len(before_offset) + digits
        head = frame_head(code, OUR_LANGUAGE_CODE, PROTOCOL_VERSION, 0, RESPONSE_FLAG, size)
        parts = (head[:OPAQUE_AT], head[OPAQUE_AT + _OPAQUE.size :] + before_id, before_offset)
        first, second, third = (part.replace(b"%", b"%%") for part in parts)
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        template = (first + b"%b" + second + b"%016X" + third + b"%d", 10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        self._templates[code, queue_id] = template
        return template

    def frame(self, request: RemotingCommand, code: int, physical_offset: int, queue_id: int, queue_offset: int) -> bytes:
        """The whole frame of an answer, in the encoding of its request."""
        if request.wire is _WIRE_JSON:
            header = self._json % (code, physical_offset, queue_id, queue_offset, request.opaque)
            return frame_start(len(header)) + header
        template, low, high = self._templates.get((code, queue_id), _NO_TEMPLATE)
        if not low <= queue_offset < high:
            template, _, _ = self._binary_template(code, queue_id, queue_offset)
        return template % (_pack_opaque(request.opaque), physical_offset, queue_offset)

    def parts(self, code: int) -> _Parts:
        """What answers with a code have in common, in JSON and in binary, as `SendRun.answers` takes it."""
        parts = self._parts.get(code)
        if parts is None:
            # No JSON has a NUL, which therefore can keep the place of a percent sign of the region.
            pieces = [piece.replace(b"\0", b"%") for piece in _CONVERSION.split(self._json.replace(b"%%", b"\0"))]
            before_code, before_id, before_queue, before_offset, before_opaque, last = pieces
            json = (before_code + b"%d" % code + before_id, before_queue, before_offset, before_opaque, last)
            fields = wire_fields(self.fields(self.message_id(0), 0, 0))
            region, trace_on, message_id, queue, offset = (encode_field(name, value.encode()) for name, value in fields.items())
            binary_head = frame_head(code, OUR_LANGUAGE_CODE, PROTOCOL_VERSION, 0, RESPONSE_FLAG, 0)
            binary = (binary_head, region + trace_on + message_id[:-16], queue[:-5], offset[:-5])
            parts = self._parts[code] = (json, binary)
        return parts

    def message_id(self, physical_offset: int) -> str:
        """The id of a message of this broker."""
        return f"{self.message_id_start}{physical_offset:016X}"

    def fields(self, message_id: str, queue_id: int, queue_offset: int | str) -> dict[str, object]:
        """The fields of an answer that is not made from a template."""
        return {
            "MSG_REGION": self.region,
            "TRACE_ON": self.trace_on,
            "msgId": message_id,
            "queueId": queue_id,
            "queueOffset": queue_offset,
        }


@attrs.define(eq=False)
class HeldAnswers:
    """Answers to one peer that are held until they are released, and pass through from then on."""

    _push: Push
    _frames: list[bytes] | None = attrs.field(factory=list[bytes])

    def push(self, frames: bytes) -> None:
        if self._frames is None:
            self._push(frames)
        else:
            self._frames.append(frames)

    async def release_after(self, condition: Callable[[], Awaitable[None]]) -> None:
        """Wait for a condition, then send what has been held; if this is cancelled, nothing is sent."""
        await condition()
        frames, self._frames = self._frames or [], None
        if frames:
            self._push(b"".join(frames))
