"""One assigned queue: what may be committed, and when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ledgermq.client.assigned import AssignedQueue, HeldBytes
from ledgermq.client.received import PulledAnswer, ReceivedMessage
from ledgermq.message.message import MessageQueue

from .test_received import Recorder

QUEUE = MessageQueue("t", "b", 0)


def messages_at(*offsets: int, size: int = 100) -> list[ReceivedMessage]:
    answer = PulledAnswer(size * len(offsets))
    return [ReceivedMessage(Recorder(), b"", 0, size, offset, answer) for offset in offsets]


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
    assert assigned.held_bytes == 0


def test_a_message_is_done_with_once() -> None:
    """A second acknowledgement says so."""
    assigned = AssignedQueue(QUEUE, 0)
    (message,) = messages_at(0)
    assigned.add([message], 1)
    assigned.take(1)

    assert assigned.ack(message)
    assert not assigned.ack(message)


def test_room_is_counted_in_messages_and_bytes() -> None:
    """Whichever bound comes first; whoever waits is notified once there is room again."""
    notified: list[bool] = []
    assigned = AssignedQueue(QUEUE, 0, messages_max=3, bytes_max=250, on_room=lambda: notified.append(True))
    first = messages_at(0, 1)
    assigned.add(first, 2)
    assert not assigned.wait_for_room()

    assigned.add(messages_at(2), 3)
    assert assigned.wait_for_room()
    assert not notified

    assigned.take(3)
    assigned.ack(first[0])
    assert not notified, "of the answer with two messages one is left, and so all of its bytes are"
    assigned.ack(first[1])
    assert notified == [True]


def test_one_open_message_holds_its_whole_answer() -> None:
    """That is what it holds in memory, so that is what is counted."""
    assigned = AssignedQueue(QUEUE, 0, bytes_max=1000)
    for start in range(0, 320, 32):
        assigned.add(messages_at(*range(start, start + 32), size=10), start + 32)
        for message in assigned.take(32)[1:]:
            assigned.ack(message)

    assert assigned.pending == 10
    assert assigned.held_bytes == 3200
    assert assigned.wait_for_room()


def test_all_queues_together_are_bounded() -> None:
    """A queue that holds nothing may be pulled all the same, and whoever waits is notified when another one has made room."""
    notified: list[str] = []
    every = HeldBytes(1000)
    one = AssignedQueue(QUEUE, 0, all_queues=every, on_room=lambda: notified.append("one"))
    two = AssignedQueue(QUEUE, 0, all_queues=every, on_room=lambda: notified.append("two"))
    one.add(messages_at(0), 1)
    two.add(messages_at(0, size=900), 1)
    assert one.wait_for_room()
    assert two.wait_for_room()
    assert not AssignedQueue(QUEUE, 0, all_queues=every).wait_for_room()

    (large,) = two.take(1)
    two.ack(large)
    assert sorted(notified) == ["one", "two"]
    assert every.held == 100

    assert not one.wait_for_room()
    one.reset(7)
    assert every.held == 0


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
    assert not assigned.give_back(before[1])
    assert not assigned.redeliver(before[1])
    assert assigned.handed_out == 0
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
    assert assigned.held_bytes == 4 * waiting.size, "the whole answer, for one message of it"
    assert assigned.ack(waiting)
    assert assigned.held_bytes == 0
    assert assigned.epoch == 1


def test_a_queue_that_goes_on_further_ahead_leaves_what_is_gone() -> None:
    """As after a reset: its messages were deleted or passed over by an administrator."""
    assigned = AssignedQueue(QUEUE, 0)
    assigned.add(messages_at(10, 11), 12)

    assigned.move(20)

    assert not assigned.take(10)
    assert assigned.committable == 20


def test_what_is_given_back_comes_next() -> None:
    """With everything behind it, where order counts; as new deliveries, so that the old ones do nothing more."""
    assigned = AssignedQueue(QUEUE, 0)
    assigned.add(messages_at(0, 1, 2, 3), 4)
    zero, one, two = assigned.take(3)
    assigned.ack(zero)
    assert assigned.handed_out == 2

    assert assigned.give_back(one)
    assert not assigned.give_back(one)
    assert not assigned.ack(one)
    assert assigned.in_work
    assert assigned.redeliver_in_order(one)
    assert not assigned.redeliver_in_order(one)

    assert not assigned.in_work
    assert not assigned.ack(two)
    again = assigned.take(10)
    assert [message.queue_offset for message in again] == [1, 2, 3]
    assert [message.local_redeliveries for message in again] == [1, 0, 0]
    assert not assigned.ack(one)
    assert not assigned.ack(two)
    assert assigned.pending_offsets == (1, 3)
    assert [assigned.ack(message) for message in again] == [True] * 3
    assert (assigned.committable, assigned.held_bytes, assigned.handed_out) == (4, 0, 0)


def test_the_memory_of_a_stopped_queue_counts_no_longer() -> None:
    """Not even that of what is in hand or comes back, which nobody may ever finish; the offset stays before it."""
    every = HeldBytes()
    assigned = AssignedQueue(QUEUE, 0, all_queues=every)
    assigned.add(messages_at(0, 1, 2, 3), 4)
    zero, one, two, three = assigned.take(4)
    assigned.ack(zero)

    assigned.stop()
    assert every.held == 0
    assigned.put_back(one)
    assigned.give_back(two)
    assigned.redeliver(two)
    assigned.ack(three)

    assert (every.held, assigned.committable, assigned.in_work) == (0, 1, False)


class Model(RuleBasedStateMachine):
    """An assigned queue beside a plain model of it: each offset and what has become of it."""

    def __init__(self) -> None:
        super().__init__()
        self.every = HeldBytes()
        self.assigned = AssignedQueue(QUEUE, 0, all_queues=self.every)
        self.buffered: list[int] = []
        self.handed_out: dict[int, ReceivedMessage] = {}
        self.given_back: dict[int, ReceivedMessage] = {}
        self.dead: list[ReceivedMessage] = []
        """Deliveries that can do nothing any more."""
        self.forgotten: list[ReceivedMessage] = []
        self.stopped = False

    @precondition(lambda self: not self.stopped)
    @rule(count=st.integers(0, 4), gap=st.integers(0, 3))
    def pull(self, count: int, gap: int) -> None:
        start = self.assigned.next_offset + gap
        self.assigned.add(messages_at(*range(start, start + count)), start + count)
        self.buffered += range(start, start + count)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        taken = self.assigned.take(count)
        assert [message.queue_offset for message in taken] == self.buffered[:count]
        self.handed_out |= {message.queue_offset: message for message in taken}
        del self.buffered[:count]

    @rule(at=st.integers(0, 20))
    def ack(self, at: int) -> None:
        if self.handed_out:
            message = self.handed_out.pop(sorted(self.handed_out)[at % len(self.handed_out)])
            assert self.assigned.ack(message)
            self.dead.append(message)

    @rule(at=st.integers(0, 20))
    def give_back(self, at: int) -> None:
        if self.handed_out:
            offset = sorted(self.handed_out)[at % len(self.handed_out)]
            assert self.assigned.give_back(self.handed_out[offset])
            self.given_back[offset] = self.handed_out.pop(offset)

    @rule(at=st.integers(0, 20), how=st.sampled_from(["finish", "redeliver", "in order"]))
    def decide(self, at: int, how: str) -> None:
        if not self.given_back:
            return
        offset = sorted(self.given_back)[at % len(self.given_back)]
        message = self.given_back.pop(offset)
        if how == "finish":
            self.assigned.finish(message)
        elif how == "redeliver":
            assert self.assigned.redeliver(message)
            self.buffered.insert(0, offset)
        else:
            assert self.assigned.redeliver_in_order(message)
            behind = sorted(other for other in self.handed_out if other > offset)
            self.dead += [self.handed_out.pop(other) for other in behind]
            self.buffered = sorted([offset, *behind, *self.buffered])
        self.dead.append(message)

    @rule()
    def stop(self) -> None:
        before = self.assigned.next_offset, self.assigned.epoch
        self.assigned.stop()
        assert self.assigned.next_offset == min([before[0], *self.buffered])
        assert self.assigned.epoch > before[1]
        self.buffered = []
        self.stopped = True

    @precondition(lambda self: not self.stopped)
    @rule(offset=st.integers(0, 60), to=st.sampled_from(["reset", "move"]))
    def move(self, offset: int, to: str) -> None:
        before = self.assigned.next_offset
        getattr(self.assigned, to)(offset)
        start = offset if to == "move" and offset < before else 0
        self.buffered = [each for each in self.buffered if each < start]
        self.forgotten += [self.handed_out.pop(each) for each in sorted(self.handed_out) if each >= start]
        self.dead += [self.given_back.pop(each) for each in sorted(self.given_back) if each >= start]

    @rule()
    def finish_forgotten(self) -> None:
        if self.forgotten:
            message = self.forgotten.pop()
            assert not self.assigned.ack(message)
            self.dead.append(message)

    @rule(at=st.integers(0, 50))
    def touch_the_dead(self, at: int) -> None:
        if self.dead:
            message = self.dead[at % len(self.dead)]
            assert not self.assigned.ack(message)
            assert not self.assigned.give_back(message)
            assert not self.assigned.redeliver(message)
            self.assigned.finish(message)

    @invariant()
    def it_agrees(self) -> None:
        assigned = self.assigned
        pending = [*self.buffered, *self.handed_out, *self.given_back]
        assert assigned.committable == min([*pending, assigned.next_offset])
        assert [message.queue_offset for message in assigned.buffered] == self.buffered
        assert assigned.handed_out == len(self.handed_out) + len(self.forgotten)
        assert assigned.given_back == len(self.given_back)
        assert assigned.pending == len(pending)
        assert bool(assigned.held_bytes) == bool(pending and not self.stopped)
        assert self.every.held == assigned.held_bytes


TestAnyOrder = Model.TestCase
