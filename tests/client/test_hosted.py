"""The common part of consumers in threads of their own: what has crossed to the application, and what is handed out of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from ledgermq.client.errors import Closed, Stopped
from ledgermq.client.hosted import HostedConsumer, HostedIteration
from ledgermq.client.received import GIVEN_BACK, HANDED_OUT, PulledAnswer, ReceivedMessage

from .test_received import Recorder


@attrs.define(eq=False)
class ThreadlessHost:
    """Runs at once what is for the client's thread."""

    client: Any = attrs.field(
        factory=lambda: SimpleNamespace(stopped=False, stop=lambda: None, options=SimpleNamespace(ack="auto", orderly=False))
    )

    def soon(self, function: Callable[[], object]) -> None:
        function()


def made(count: int) -> tuple[Recorder, Any, list[ReceivedMessage]]:
    origin, answer = Recorder(), PulledAnswer(30)
    messages = [ReceivedMessage(origin, b"", 0, 10, offset, answer) for offset in range(count)]
    for message in messages:
        message.state = HANDED_OUT
    return origin, HostedConsumer[Any](ThreadlessHost()), messages


def test_what_was_moved_meanwhile_is_not_handed_out() -> None:
    """The next message that is still to be handled is, from loops and lists alike."""
    origin, consumer, messages = made(4)
    messages[0].state = messages[2].state = GIVEN_BACK
    waiting = deque(messages[:2])

    assert consumer.at_hand(waiting) is messages[1]
    assert consumer.at_hand(waiting) is None
    assert origin.retried == [(0, 0)]
    consumer.fetched.extend(messages[2:])
    assert consumer.fetched_before(5) == messages[3:]


def test_what_has_crossed_of_a_paused_queue_is_put_back() -> None:
    """In its order; it comes again after `resume`."""
    origin, consumer, messages = made(3)
    origin.paused = True

    assert consumer.at_hand(deque(messages)) is None
    assert origin.retried == [(2, 0), (1, 0), (0, 0)]


def test_a_stopped_consumer_hands_out_nothing_at_once() -> None:
    """Not even what has crossed already."""
    _, consumer, messages = made(1)
    consumer.stop()

    assert consumer.stopped
    with pytest.raises(Stopped):
        consumer.at_hand(deque(messages))


def test_the_last_loop_leaves_nothing_behind() -> None:
    """What it has in hand comes again, and so does what no loop has seen; other loops are waited for."""
    origin, consumer, messages = made(3)
    one, other = HostedIteration[Any](consumer, True), HostedIteration[Any](consumer, True)
    consumer.fetched.extend(messages[1:])
    one.hand_out(messages[0])

    del one
    assert origin.retried == [(0, 0)]
    del other
    assert origin.retried == [(0, 0), (2, 0), (1, 0)]


def test_a_block_that_outlives_its_consumer_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get its messages, so it must not end as if it had finished them."""
    origin, consumer, messages = made(1)

    def closed(_: Recorder) -> None:
        raise Closed("the consumer is closed")

    with pytest.raises(Closed), consumer.finishing(messages):
        monkeypatch.setattr(Recorder, "check_open", closed)

    assert origin.acked == []
