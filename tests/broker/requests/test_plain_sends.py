"""The compiled path for plain sends does what the Python path does, byte for byte, and leaves to it what it does not know."""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from ledgermq import native
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.message.batch import encode_batch
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, Wire, decode_command, encode_frame
from ledgermq.remoting.frame import FrameReader
from ledgermq.store.log.commitlog import Done
from ledgermq.store.log.segments import Segment
from ledgermq.store.statuses import PutStatus

from ...native.twins import BORN, TOPICS, answers_of, open_twins, send

pytestmark = pytest.mark.skipif(native.scan_sends is None, reason="the compiled path is not built")


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


PLAIN = encode_properties({"UNIQ_KEY": "0A" * 16, "WAIT": "true", "TAGS": "paid", "KEYS": "k1 k2"})


def codes_of(answers: bytes) -> list[int]:
    return [decode_command(*frame).code for frame in FrameReader().feed(answers)]


@pytest.mark.parametrize("wire", Wire)
async def test_a_receive_of_plain_sends_is_taken_as_one_run(autojump_clock: MockClock, wire: Wire) -> None:
    """As clients write them, to several topics and queues, with tags and keys, or oneway."""
    async with open_twins() as twins:
        twins.compiled.runs = 0
        frames = [
            send(opaque=at, wire=wire, b=TOPICS[at % 2], e=at % 4, flag=2 * (at % 7 == 3), body=bytes(at), i=PLAIN)
            for at in range(50)
        ]

        answers, held, _ = twins.check([b"".join(frames) + frames[0][:20]])
        twins.check_state()

        assert twins.compiled.runs == 1
        assert held == 20
        assert codes_of(answers) == [0] * 43


@pytest.mark.parametrize(
    "fields", [{"b": "Unknown"}, {"e": 4}, {"body": b"x" * (5 << 20)}, {"b": "%RETRY%g"}, {"b": "SELF_TEST_TOPIC"}], ids=str
)
async def test_one_send_that_is_refused_leaves_the_whole_run_to_python(
    autojump_clock: MockClock, fields: dict[str, Any]
) -> None:
    """So that its neighbours are put together, and stored and answered as if there were no compiled path."""
    async with open_twins() as twins:
        twins.check([send(opaque=1) + send(opaque=2, **{**fields, "body": fields.get("body", b"x")}) + send(opaque=3)])
        twins.check_state()


async def test_nothing_is_stored_if_a_later_frame_of_the_receive_is_malformed(autojump_clock: MockClock) -> None:
    """The connection is closed, and whatever it brought in that receive was not handled, as in Python."""
    async with open_twins() as twins:
        before = twins.check_state()["log"]

        _, _, malformed = twins.check([send() + b"\0\0\0\1\0\0\0\0"])
        _, _, header = twins.check([send() + b"\0\0\0\4\7\0\0\0"])

        assert (bool(malformed), bool(header)) == (True, True)
        assert twins.check_state()["log"] == before


async def test_a_heartbeat_between_sends_changes_nothing_about_their_offsets(autojump_clock: MockClock) -> None:
    """The offsets of queues have one owner, whichever path gives them out."""
    async with open_twins() as twins:
        heartbeat = encode_frame(RemotingCommand(RequestCode.HEART_BEAT, {}, b'{"clientID":"c"}', 99))
        batch = send(code=RequestCode.SEND_BATCH_MESSAGE, m="true", body=encode_batch([(0, b"x", b""), (0, b"y", b"")]))

        answers, _, _ = twins.check([send() + heartbeat + send() + batch + send(), send() + send()])
        offsets = twins.check_state()["next offsets"]

        assert codes_of(answers) == [0] * 7
        assert offsets["T", 0] == 8


async def test_after_a_failed_write_every_send_is_refused_and_its_offset_given_again(autojump_clock: MockClock) -> None:
    """What the write has left is withdrawn, and the log goes on when it is healed."""
    async with open_twins() as twins:
        offsets = twins.check_state()["next offsets"]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Segment, "append", refuse)
            answers, _, _ = twins.check([send(opaque=1) + send(opaque=2, wire=Wire.BINARY) + send(opaque=3, flag=2)])

        assert codes_of(answers) == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert twins.check_state()["next offsets"] == offsets
        twins.check([send()])


@pytest.mark.parametrize(
    "status", [PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.UNKNOWN_ERROR]
)
async def test_sends_that_wait_for_more_than_the_append_are_answered_with_its_outcome(
    autojump_clock: MockClock, status: PutStatus
) -> None:
    """Whether they wait for a flush, for slaves or for a majority."""
    async with open_twins(flushDiskType="SYNC_FLUSH") as twins:
        frames = b"".join(send(opaque=at, wire=Wire(at % 2), flag=2 * (at == 3)) for at in range(5))
        outcomes: list[bytes] = []

        for twin in (twins.compiled, twins.python):
            waiting: list[Done] = []

            def wait(_log: object, _end: int, done: Done, waiting: list[Done] = waiting) -> None:
                waiting.append(done)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ClassicCommitLog, "when_stored", wait)
                with twin.connected() as connection:
                    twin.give(connection, [frames])
                    assert answers_of(connection) == b""
                    (done,) = waiting
                    done(status)
                    outcomes.append(answers_of(connection))

        assert outcomes[0] == outcomes[1]
        assert len(codes_of(outcomes[0])) == 4
        twins.check_state()


async def test_without_enough_slaves_in_sync_no_send_is_taken(autojump_clock: MockClock) -> None:
    """As `minInSyncReplicas` asks; the offsets are given again."""
    async with open_twins(brokerRole="SYNC_MASTER", inSyncReplicas="2", minInSyncReplicas="2") as twins:
        before = twins.check_state()

        answers, _, _ = twins.check([send(opaque=1) + send(opaque=2, wire=Wire.BINARY)])

        assert codes_of(answers) == [ResponseCode.SYSTEM_ERROR] * 2
        after = twins.check_state()
        assert (after["log"], after["next offsets"]) == (before["log"], before["next offsets"])


async def test_a_held_pull_is_woken(autojump_clock: MockClock) -> None:
    """By the messages of a run as by any others."""
    async with open_twins() as twins:
        pull = encode_frame(
            RemotingCommand(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "g",
                    "topic": "T",
                    "queueId": "0",
                    "queueOffset": "1",
                    "maxMsgNums": "32",
                    "sysFlag": "6",
                    "commitOffset": "0",
                    "suspendTimeoutMillis": "15000",
                    "subscription": "paid",
                    "subVersion": "0",
                },
                opaque=77,
            )
        )
        woken: list[bytes] = []
        for twin in (twins.compiled, twins.python):
            with twin.connected() as connection:
                twin.give(connection, [pull])
                assert answers_of(connection) == b""
                twin.connect([send(), send(i=PLAIN)])
                twin.broker.store.catch_up()
                woken.append(answers_of(connection))

        assert woken[0] == woken[1]
        assert codes_of(woken[0]) == [0]


PROPERTY = st.tuples(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "LMQ_SEND", "a", "Ä", "xKEYS", ""]),
    st.sampled_from(["", "1", "true", "false", "k1 k2", " k", "Ü", "0A" * 16, "x" * 300]),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "b": st.sampled_from([*TOPICS, "T", "T", "T", "T", "Unknown", "%RETRY%g"]),
    "e": st.sampled_from([0, 1, 2, 3, 0, 1, 2, 3, 4, -1, "x"]),
    "f": st.sampled_from([0, 0, 0, 0, 1, 2, 4, 0x30, "x"]),
    "g": st.sampled_from([BORN, 0, 10**18, -1]),
    "h": st.sampled_from([0, 0, 0, 7, -7, 1 << 40]),
    "i": st.lists(PROPERTY, max_size=4).map(lambda items: "\2".join(f"{name}\1{value}" for name, value in items)),
    "j": st.sampled_from([0, 0, 0, "", 1]),
    "k": st.sampled_from(["false", None]),
    "m": st.sampled_from(["false", "false", None, "true"]),
}
SENDS = st.builds(
    send,
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    wire=st.sampled_from(Wire),
    flag=st.sampled_from([0, 0, 0, 0, 2, 3, 4]),
    code=st.sampled_from([310, 310, 310, 310, 310, 10]),
    body=st.binary(max_size=40),
    **FIELDS,
) | st.builds(send, opaque=st.integers(0, 1000), wire=st.sampled_from(Wire), e=st.integers(0, 3), body=st.binary(max_size=40))
DAMAGE = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=2)


async def test_whatever_is_received_both_paths_do_the_same(autojump_clock: MockClock) -> None:
    """Plain, unusual and damaged sends, in pieces of any size: answers, log, queues, index, offsets and counters are equal."""
    async with open_twins() as twins:

        @settings(max_examples=300)
        @given(st.lists(SENDS, min_size=1, max_size=8), DAMAGE, st.lists(st.integers(0, 4000), max_size=3))
        def check(frames: list[bytes], damage: list[tuple[int, int]], cuts: list[int]) -> None:
            received = bytearray(b"".join(frames))
            for at, value in damage:
                received[at % len(received)] = value
            edges = sorted({0, len(received), *(cut % len(received) for cut in cuts)})

            twins.check([bytes(received[start:end]) for start, end in pairwise(edges)])
            twins.check_state()

        check()

        assert twins.compiled.runs > 30
