"""Bodies of DLedger 0.3.1.2, byte for byte as its own classes write them, and what is read of others."""

from __future__ import annotations

import contextlib
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.dledger.java import bodies as java
from ledgermq.ha.dledger.java.clients import code_of_refusal
from ledgermq.ha.dledger.java.messages import (
    APPEND,
    COMMIT,
    Answer,
    HeartBeat,
    Push,
    Reply,
    Request,
    Transfer,
    Vote,
    VoteRequest,
)
from ledgermq.ha.dledger.ledger.layout import ENTRY
from ledgermq.ha.errors import HaProtocolError, TooManyPending
from ledgermq.ha.raft.errors import NotLeader, TransferInProgress
from ledgermq.ha.raft.units import PeerId

N0, N1 = PeerId("n0"), PeerId("n1")
HELLO = memoryview(
    ENTRY.pack(magic=1, size=53, index=5, term=3, position=240, channel=0, chain_crc=0, body_crc=0, body_size=5) + b"hello"
)
VOTE = VoteRequest(sender=N0, to=N1, term=3, end_index=10, end_term=2)
SINGLE = Push(sender=N0, to=N1, term=3, kind=APPEND, commit_index=4, first_index=5, last_index=5, entries=(HELLO,))
COMMITTED = Push(sender=N0, to=N1, term=3, kind=COMMIT, commit_index=4)


@pytest.mark.parametrize(
    ("request_", "golden"),
    [
        (
            VOTE,
            (
                b'{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":10,"ledgerEndTerm":2,"localId":"n0","remoteId":"n1",'
                b'"term":3}'
            ),
        ),
        (
            SINGLE,
            (
                b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":4,"count":1,"entry":{"body":"aGVsbG8=","bodyCrc":0,'
                b'"chainCrc":0,"channel":0,"index":5,"magic":1,"pos":240,"size":53,"term":3},"firstEntryIndex":5,"group":"g",'
                b'"lastEntryIndex":5,"leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"totalSize":0,"type":"APPEND"}'
            ),
        ),
        (
            COMMITTED,
            (
                b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":4,"count":0,"firstEntryIndex":-1,"group":"g",'
                b'"lastEntryIndex":-1,"leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"totalSize":0,"type":"COMMIT"}'
            ),
        ),
        (
            HeartBeat(sender=N0, to=N1, term=3),
            b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3}',
        ),
    ],
    ids=["vote", "push", "commit", "heartbeat"],
)
def test_a_request_is_written_as_java_writes_it(request_: Request, golden: bytes) -> None:
    """Captured from the classes of 0.3.1.2; what is written is read back too."""
    assert java.encode_request("g", request_) == golden
    assert java.read_request(java.code_of(request_), java.read_object(golden), N1, None) == request_


def test_a_vote_answer_is_that_of_java() -> None:
    """With the words that a Java candidate counts."""
    golden = b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"voteResult":"ACCEPT"}'
    assert java.encode_reply("g", Reply(request=VOTE, term=3, result=Vote.ACCEPT)) == golden
    assert java.read_answer(golden) == Answer(code=200, term=3, result=Vote.ACCEPT)


def test_a_body_beyond_json_is_read_only_if_it_is_short() -> None:
    """Our own reader is slow, and this one reads on the event loop; what Java sends is strict JSON."""
    strict = b'{"body":"' + b"A" * 40_000 + b'"}'
    assert len(java.read_object(strict)["body"]) == 40_000
    for loose in (b'{"a":{{"b":1}:' + b"1" * 40_000 + b"}}", b'{"$ref":"$",' + strict[1:]):
        with pytest.raises(HaProtocolError, match="a body that is"):
            java.read_object(loose)
    assert java.read_object(b'{"peers":{1:"a"}}') == {"peers": {"1": "a"}}


def test_a_push_answer_is_that_of_java() -> None:
    """The bounds of the follower's log decide what its leader does next."""
    golden = b'{"beginIndex":0,"code":200,"count":1,"endIndex":5,"group":"g","index":5,"term":3}'
    reply = Reply(request=SINGLE, term=3, index=5, count=1, begin_index=0, end_index=5)
    assert java.encode_reply("g", reply) == golden
    assert java.read_answer(golden) == Answer(code=200, term=3, begin_index=0, end_index=5)


def test_a_batch_and_a_crc_of_a_java_int_are_read_back() -> None:
    """Our CRC fills the field that Java leaves 0; a large one is negative there."""
    entries = tuple(
        memoryview(
            ENTRY.pack(
                magic=1, size=50, index=index, term=3, position=50 * index, channel=0, chain_crc=0, body_crc=crc, body_size=2
            )
            + b"ab"
        )
        for index, crc in ((7, 0xFFFFFFFF), (8, 5))
    )
    push = Push(sender=N0, to=N1, term=3, kind=APPEND, commit_index=4, first_index=7, last_index=8, entries=entries)
    body = java.encode_request("g", push)
    assert b'"bodyCrc":-1' in body
    assert b'"batch":true' in body
    found = java.read_request(java.PUSH, java.read_object(body), N1, None)
    assert isinstance(found, Push)
    assert [bytes(entry) for entry in found.entries] == [bytes(entry) for entry in entries]


def test_a_transfer_is_read_back() -> None:
    """To the node that is to take over."""
    transfer = Transfer(sender=N0, to=N1, term=3, leader=N0, transferee=N1, index=9)
    assert java.read_request(51005, java.read_object(java.encode_request("g", transfer)), N1, None) == transfer


@given(
    st.sampled_from([java.VOTE, java.HEART_BEAT, java.PUSH, java.LEADERSHIP_TRANSFER]),
    st.dictionaries(
        st.sampled_from(["term", "leaderId", "type", "entry", "batchEntry", "commitIndex", "ledgerEndIndex", "transfereeId"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
            lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["body", "index"]), inner)),
            max_leaves=5,
        ),
    ),
)
def test_any_request_is_read_or_refused(code: int, fields: dict[str, object]) -> None:
    """A peer of another version, or a stranger: DLedger's dialect authenticates nobody."""
    with contextlib.suppress(HaProtocolError):
        java.read_request(code, fields, N1, None)


def test_a_refusal_has_the_code_of_java() -> None:
    """For clients of DLedger itself."""
    assert code_of_refusal(NotLeader(None)) == 404
    assert code_of_refusal(TransferInProgress(N0)) == 506
    assert code_of_refusal(TooManyPending(10)) == 503
    assert code_of_refusal(OSError()) == 414
    assert code_of_refusal(OSError(errno.ENOSPC, "No space left on device")) == 415


@pytest.mark.parametrize("field", ["index", "pos"])
def test_an_entry_with_a_place_that_no_next_one_could_follow_is_refused(field: str) -> None:
    fields = java.entry_fields(HELLO)
    assert java.read_entry(fields) == HELLO

    with pytest.raises(HaProtocolError, match=r"entry .* at position"):
        java.read_entry({**fields, field: (1 << 63) - 1})
