"""One assigned queue: what may be committed, and when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.assigned import AssignedQueue
from ledgermq.client.received import ReceivedMessage
from ledgermq.message.message import MessageQueue

from .test_received import Recorder

QUEUE = MessageQueue("t", "b", 0)


def messages_at(*offsets: int, size: int = 100) -> list[ReceivedMessage]:
    return [ReceivedMessage(Recorder(), b"", 0, size, offset) for offset in offsets]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.randoms())
def test_the_committable_offset_is_the_oldest_that_is_open(gaps: list[int], randomness: object) -> None:
    """In whatever order messages are done with, and with offsets that a filter left out."""
    offsets = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    assigned = AssignedQueue(QUEUE, 0)
    assigned.add(messages_at(*offsets), offsets[-1] + 1)
    open_messages = {message.queue_offset: message for message in assigned.take(1000)}
    order = list(offsets)
    randomness.shuffle(order)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    for offset in order:
        assert assigned.committable == min(open_messages)
        assert assigned.ack(open_messages.pop(offset))
    assert assigned.committable == offsets[-1] + 1
    assert assigned.pending_bytes == 0


def test_a_message_is_done_with_once() -> None:
    """A second acknowledgement says so."""
    assigned = AssignedQueue(QUEUE, 0)
    (message,) = messages_at(0)
    assigned.add([message], 1)
    assigned.take(1)

    assert assigned.ack(message)
    assert not assigned.ack(message)


def test_room_is_counted_in_messages_and_bytes() -> None:
    """Whichever bound comes first; whoever waits is told once there is room again."""
    told: list[bool] = []
    assigned = AssignedQueue(QUEUE, 0, messages_max=3, bytes_max=250, on_room=lambda: told.append(True))
    first = messages_at(0, 1)
    assigned.add(first, 2)
    assert not assigned.wait_for_room()

    assigned.add(messages_at(2), 3)
    assert assigned.wait_for_room()
    assert not told

    assigned.take(3)
    assigned.ack(first[0])
    assigned.ack(first[1])
    assert told == [True]


def test_after_a_reset_nothing_of_before_counts() -> None:
    """Messages in hand cannot move the new position, not even if they have offsets that come again."""
    assigned = AssignedQueue(QUEUE, 0)
    before = messages_at(0, 1)
    assigned.add(before, 2)
    assigned.take(2)

    assigned.reset(0)
    again = messages_at(0, 1)
    assigned.add(again, 2)

    assert not assigned.ack(before[0])
    assert not assigned.put_back(before[1])
    assert assigned.committable == 0
    assert assigned.epoch == 1


def test_a_queue_that_goes_on_further_back_loses_nothing_that_was_pulled_before() -> None:
    """The broker that is asked now has less than the one before: what it says it has comes again, the rest would not."""
    assigned = AssignedQueue(QUEUE, 0)
    early, handed_out, waiting, ahead = messages_at(10, 11, 12, 13)
    assigned.add([early, handed_out, waiting, ahead], 14)
    assigned.take(2)
    assigned.ack(early)

    assigned.move(13)

    assert assigned.next_offset == 13
    assert assigned.committable == 11
    assert assigned.take(10) == [waiting]
    assert assigned.ack(handed_out)
    assert not assigned.ack(ahead)
    assert assigned.pending_bytes == waiting.size
    assert assigned.epoch == 1


def test_a_queue_that_goes_on_further_ahead_leaves_what_is_gone() -> None:
    """As after a reset: its messages were deleted or passed over by an administrator."""
    assigned = AssignedQueue(QUEUE, 0)
    assigned.add(messages_at(10, 11), 12)

    assigned.move(20)

    assert not assigned.take(10)
    assert assigned.committable == 20


def test_what_is_put_back_comes_next() -> None:
    """With everything behind it, where order counts."""
    assigned = AssignedQueue(QUEUE, 0)
    assigned.add(messages_at(0, 1, 2, 3), 4)
    zero, one, two = assigned.take(3)
    assigned.ack(zero)
    assert assigned.handed_out == 2

    assert assigned.put_back_from(one)

    assert assigned.handed_out == 0
    assert [message.queue_offset for message in assigned.take(10)] == [1, 2, 3]
    assert (one.local_redeliveries, two.local_redeliveries) == (1, 0)
    assert assigned.pending_offsets == (1, 3)
