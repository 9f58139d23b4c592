"""Answers to sends, made from one template for each header encoding: they differ in five numbers only."""

from __future__ import annotations

import attrs
import orjson

from ..remoting.binary_header import SIZE_CODES, encode_field, frame_head
from ..remoting.command import (
    OUR_LANGUAGE,
    OUR_LANGUAGE_CODE,
    PROTOCOL_VERSION,
    RESPONSE_FLAG,
    RemotingCommand,
    Wire,
    frame_start,
)

_JSON = (
    '{"code":%%d,"extFields":{"MSG_REGION":%s,"TRACE_ON":"%s","msgId":"%s%%016X","queueId":"%%d","queueOffset":"%%d"},'
    '"flag":%d,"language":"%s","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
)
_WIRE_JSON = Wire.JSON


@attrs.define(eq=False)
class SendAnswers:
    """Makes the answers of one broker."""

    region: str
    trace_on: bool
    message_id_start: str
    """What the ids of this broker's messages begin with: its address, in hexadecimal."""
    _json: bytes = attrs.field(init=False)
    _binary: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._json = self._json_template()
        self._binary = self._binary_template()

    def _json_template(self) -> bytes:
        region = orjson.dumps(self.region).decode().replace("%", "%%")
        trace_on = "true" if self.trace_on else "false"
        constants = (region, trace_on, self.message_id_start, RESPONSE_FLAG, OUR_LANGUAGE, PROTOCOL_VERSION)
        return (_JSON % constants).encode()

    def _binary_template(self) -> bytes:
        constant = encode_field("MSG_REGION", self.region.encode()) + encode_field(
            "TRACE_ON", b"true" if self.trace_on else b"false"
        )
        message_id = encode_field("msgId", self.message_id_start.encode() + bytes(16)).removesuffix(bytes(16))
        queue_id = encode_field("queueId", b"")[: -len(SIZE_CODES[0])]
        queue_offset = encode_field("queueOffset", b"")[: -len(SIZE_CODES[0])]
        constant, message_id = constant.replace(b"%", b"%%"), message_id.replace(b"%", b"%%")
        return constant + message_id + b"%016X" + queue_id + b"%b%b" + queue_offset + b"%b%b"

    def frame(self, request: RemotingCommand, code: int, physical_offset: int, queue_id: int, queue_offset: int) -> bytes:
        """The whole frame of an answer, in the encoding of its request."""
        if request.wire is _WIRE_JSON:
            header = self._json % (code, physical_offset, queue_id, queue_offset, request.opaque)
            return frame_start(len(header)) + header
        queue, offset = b"%d" % queue_id, b"%d" % queue_offset
        block = self._binary % (physical_offset, SIZE_CODES[len(queue)], queue, SIZE_CODES[len(offset)], offset)
        return frame_head(code, OUR_LANGUAGE_CODE, PROTOCOL_VERSION, request.opaque, RESPONSE_FLAG, len(block)) + block

    def message_id(self, physical_offset: int) -> str:
        """The id of a message of this broker."""
        return f"{self.message_id_start}{physical_offset:016X}"

    def fields(self, message_id: str, queue_id: int, queue_offset: int) -> dict[str, object]:
        """The fields of an answer that is not made from a template."""
        return {
            "MSG_REGION": self.region,
            "TRACE_ON": self.trace_on,
            "msgId": message_id,
            "queueId": queue_id,
            "queueOffset": queue_offset,
        }
