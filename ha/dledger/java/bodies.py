"""DLedger 0.3.1.2's requests and answers as JSON bodies of remoting frames, in the exact bytes that fastjson writes.

Keys are sorted and absent ones are omitted; bodies of entries are base64. The result of a request is the `code` in its body;
the remoting code is 200 for every request that reached the handler. This module does no I/O.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, cast

from ....message.errors import JsonError
from ....message.json import OF_STRANGERS_BYTES_MAX, dumps, loads
from ....message.numbers import int_of, long_of
from ...errors import HaProtocolError
from ...raft.units import NO_INDEX, LogIndex, PeerId
from ..ledger.layout import BODY_SIZE_MAX, ENTRY, HEADER_SIZE, INDEX_MAX, MAGIC_ENTRY, POSITION_MAX
from .messages import (
    APPEND,
    COMMIT,
    COMPARE,
    TRUNCATE,
    Answer,
    Code,
    HeartBeat,
    Push,
    Reply,
    Request,
    Transfer,
    Vote,
    VoteRequest,
)

METADATA, APPEND_ENTRY, GET = 50000, 50001, 50002
VOTE, HEART_BEAT, PUSH, LEADERSHIP_TRANSFER = 51001, 51002, 51004, 51005

BODY_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of a request body, which is also the largest remoting frame; a larger one is refused."""
ENTRIES_MAX = 4096
"""The most entries of one push; a push with more raises HaProtocolError."""
NAME_CHARACTERS_MAX = 255
"""The most characters of a name in a request or answer; a longer one raises HaProtocolError."""

_unpack_header = ENTRY.codec.unpack_from


def code_of(request: Request) -> int:
    """Return the remoting code of a request."""
    if isinstance(request, VoteRequest):
        return VOTE
    if isinstance(request, HeartBeat):
        return HEART_BEAT
    return PUSH if isinstance(request, Push) else LEADERSHIP_TRANSFER


def _base(group: str, request: Request) -> dict[str, Any]:
    return {
        "code": int(Code.SUCCESS),
        "group": group,
        "leaderId": request.sender,
        "localId": request.sender,
        "remoteId": request.to,
        "term": request.term,
    }


def encode_request(group: str, request: Request) -> bytes:
    """Encode the body of a request."""
    fields = _base(group, request)
    if isinstance(request, VoteRequest):
        fields |= {"ledgerEndIndex": request.end_index, "ledgerEndTerm": request.end_term}
    elif isinstance(request, Push):
        fields |= _push_fields(request)
    elif isinstance(request, Transfer):
        fields |= {
            "leaderId": request.leader,
            "takeLeadershipLedgerIndex": request.index,
            "transferId": request.leader,
            "transfereeId": request.transferee,
        }
    return dumps(dict(sorted(fields.items())))


def _push_fields(push: Push) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "batch": False,
        "batchEntry": [],
        "commitIndex": push.commit_index,
        "count": len(push.entries),
        "firstEntryIndex": push.first_index,
        "lastEntryIndex": push.last_index,
        "totalSize": 0,
        "type": push.kind,
    }
    if len(push.entries) == 1:
        fields["entry"] = entry_fields(push.entries[0])
    elif push.entries:
        fields |= {
            "batch": True,
            "batchEntry": [entry_fields(entry) for entry in push.entries],
            "totalSize": sum(map(len, push.entries)),
        }
    return fields


def entry_fields(entry: memoryview) -> dict[str, Any]:
    """Encode one entry as a JSON object."""
    magic, size, index, term, position, channel, chain_crc, crc, _ = _unpack_header(entry)
    return {
        "body": b64encode(entry[HEADER_SIZE:]).decode(),
        "bodyCrc": crc - (1 << 32) if crc >> 31 else crc,  # a Java int
        "chainCrc": chain_crc,
        "channel": channel,
        "index": index,
        "magic": magic,
        "pos": position,
        "size": size,
        "term": term,
    }


def read_entry(fields: Any) -> memoryview:
    """Decode an entry from its JSON object, and return its bytes.

    Raises:
        HaProtocolError: the object is not an entry.
    """
    try:
        text = fields.get("body") or ""
        if len(text) > 2 * BODY_SIZE_MAX:
            raise HaProtocolError(f"an entry with a body of {len(text)} characters")
        body = b64decode(text, validate=True)
        head = ENTRY.codec.pack(
            int_of(fields.get("magic", 0)),
            int_of(fields.get("size", 0)),
            long_of(fields.get("index", NO_INDEX)),
            long_of(fields.get("term", NO_INDEX)),
            long_of(fields.get("pos", 0)),
            int_of(fields.get("channel", 0)),
            int_of(fields.get("chainCrc", 0)),
            int_of(fields.get("bodyCrc", 0)) & 0xFFFFFFFF,
            len(body),
        )
    except (AttributeError, TypeError, ValueError, binascii.Error) as error:
        raise HaProtocolError(f"an entry that cannot be read: {error}") from error
    magic, size, index, _, position, *_ = _unpack_header(head)
    has_place = 0 <= index <= INDEX_MAX and 0 <= position <= POSITION_MAX
    if magic != MAGIC_ENTRY or size != HEADER_SIZE + len(body) or not has_place or len(body) > BODY_SIZE_MAX:
        raise HaProtocolError(
            f"entry {index} at position {position} with magic {magic}, size {size} and a body of {len(body)} bytes"
        )
    return memoryview(head + body)


def read_object(body: bytes) -> Mapping[str, Any]:
    """Decode the JSON object of a body.

    Raises:
        HaProtocolError: the body is not a JSON object.
    """
    try:
        found: Any = loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    except JsonError as error:
        raise HaProtocolError(f"a body that is {error}") from error
    if not isinstance(found, dict):
        raise HaProtocolError("a body that is no JSON object")
    return cast("dict[str, Any]", found)


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS_MAX:
        raise HaProtocolError(f"{key} is a text of at most {NAME_CHARACTERS_MAX} characters (got {value!r:.100})")
    return value


def read_request(code: int, fields: Mapping[str, Any], own: PeerId, token: Any) -> Request:
    """Decode a request of a peer.

    Raises:
        HaProtocolError: the fields are not a request.
    """
    try:
        term = long_of(fields.get("term", NO_INDEX))
        # Before 0.3.0, pushes and votes do not name their sender, only the leader or the candidate.
        leader = PeerId(_text(fields, "leaderId"))
        if code == VOTE:
            return VoteRequest(
                sender=leader,
                to=own,
                term=term,
                end_index=long_of(fields.get("ledgerEndIndex", NO_INDEX)),
                end_term=long_of(fields.get("ledgerEndTerm", NO_INDEX)),
                token=token,
            )
        if code == HEART_BEAT:
            return HeartBeat(sender=leader, to=own, term=term, token=token)
        if code == LEADERSHIP_TRANSFER:
            return Transfer(
                sender=PeerId(_text(fields, "localId") or leader),
                to=own,
                term=term,
                leader=PeerId(_text(fields, "transferId")),
                transferee=PeerId(_text(fields, "transfereeId")),
                index=long_of(fields.get("takeLeadershipLedgerIndex", NO_INDEX)),
                token=token,
            )
        return _read_push(fields, leader, own, term, token)
    except (TypeError, ValueError) as error:
        raise HaProtocolError(f"a request {code} that cannot be read: {error}") from error


def _read_push(fields: Mapping[str, Any], leader: PeerId, own: PeerId, term: int, token: Any) -> Push:
    kind = fields.get("type", APPEND)
    if kind not in (APPEND, COMMIT, COMPARE, TRUNCATE):
        raise HaProtocolError(f"a push of type {kind!r:.40}")
    found: Any = fields.get("batchEntry") or []
    several = cast("list[Any]", found)
    if not isinstance(found, list) or len(several) > ENTRIES_MAX:
        raise HaProtocolError(f"a push has at most {ENTRIES_MAX} entries")
    given = several or ([fields["entry"]] if fields.get("entry") is not None else [])
    entries = [read_entry(each) for each in given]
    indexes: list[LogIndex] = [_unpack_header(entry)[2] for entry in entries]
    if indexes and indexes != list(range(indexes[0], indexes[0] + len(indexes))):
        raise HaProtocolError(f"a push whose entries do not follow one another: {indexes[:10]}")
    return Push(
        sender=leader,
        to=own,
        term=term,
        kind=str(kind),
        commit_index=long_of(fields.get("commitIndex", NO_INDEX)),
        first_index=indexes[0] if indexes else NO_INDEX,
        last_index=indexes[-1] if indexes else NO_INDEX,
        entries=tuple(entries),
        token=token,
    )


def encode_reply(group: str, reply: Reply) -> bytes:
    """Encode the body of an answer."""
    request = reply.request
    fields: dict[str, Any] = {"code": int(reply.code), "term": reply.term}
    if isinstance(request, VoteRequest):
        fields |= {"group": group, "leaderId": request.sender, "localId": request.sender, "remoteId": request.to}
        fields["voteResult"] = reply.result
    elif isinstance(request, Push):
        fields |= {"group": group, "count": reply.count, "beginIndex": reply.begin_index, "endIndex": reply.end_index}
        if reply.index != NO_INDEX:
            fields["index"] = reply.index
    elif reply.leader is not None:
        fields |= {"group": group, "leaderId": reply.leader}
    return dumps(dict(sorted(fields.items())))


def read_answer(body: bytes) -> Answer:
    """Decode the answer of a peer.

    Raises:
        HaProtocolError: the body is not an answer.
    """
    fields = read_object(body)
    try:
        numbers = {name: long_of(fields.get(key, default)) for name, key, default in _NUMBERS}
    except (TypeError, ValueError) as error:
        raise HaProtocolError(f"an answer that cannot be read: {error}") from error
    return Answer(result=_text(fields, "voteResult") or Vote.UNKNOWN, **numbers)


_NUMBERS = (
    ("code", "code", int(Code.SUCCESS)),
    ("term", "term", NO_INDEX),
    ("begin_index", "beginIndex", NO_INDEX),
    ("end_index", "endIndex", NO_INDEX),
)


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Encode the body of an answer with these fields."""
    return dumps(dict(sorted(fields.items())))
