"""Bugs in clients, and in the state that brokers keep for them, that the simulator of whole nodes must find."""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.broker.tables.locks import QueueLocks
from ledgermq.client import blocking, producer, push_consumer, queue_keeping
from ledgermq.client.assigned import AssignedQueue
from ledgermq.client.consumer import Consumer
from ledgermq.client.delivery import Line, Source
from ledgermq.client.iteration import Iteration
from ledgermq.client.membership import Membership
from ledgermq.client.name_servers import NameServers
from ledgermq.client.offsets import BrokerOffsets, LocalOffsets
from ledgermq.client.pull import PullConsumer
from ledgermq.client.queue_keeping import QueueKeeper
from ledgermq.client.received import FORGOTTEN, GIVEN_BACK, HANDED_OUT
from ledgermq.client.redelivery import Redelivery
from ledgermq.client.session import Session
from ledgermq.client.transmit import Transmitter


def _acknowledge_what_was_given_back(original: Any) -> Callable[[Any, Any], bool]:
    def ack(self: Any, message: Any) -> bool:
        if message.state != GIVEN_BACK:
            return bool(original(self, message))
        self.finish(message)
        return True

    return ack


def _acknowledge_at_the_end(original: Any) -> Callable[[Any], Any]:
    async def close(self: Any) -> None:
        for source in self.sources.values():
            for message in list(source.assigned._pending.values()):  # noqa: SLF001 - a planted bug may reach into private state
                if message.state == HANDED_OUT:
                    source.assigned.ack(message)
        await original(self)

    return close


def _give_a_queue_away_in_work(original: Any) -> Callable[..., Any]:
    async def leave(self: Any, source: Any, locked: bool) -> None:
        await self.notify_revoked([source])
        await self.unlock(source.queue)
        self.leaving.remove(source)
        self.on_left()

    return leave


def _forget_locks_on_restart(_: Any) -> Callable[[Any, Any, float], None]:
    return lambda self, stored, now: None


def _redeliver_behind_others(original: Any) -> Callable[[Any, Any], bool]:
    def redeliver(self: Any, message: Any) -> bool:
        done = bool(original(self, message))
        if done and len(self.buffered) > 1:
            self.buffered.rotate(-1)
        return done

    return redeliver


def _stop_a_queue_at_the_second_retry(original: Any) -> Callable[[Any, Any, Any], None]:
    def hold_up(self: Any, source: Any, message: Any) -> None:
        if not message.local_redeliveries:
            original(self, source, message)
        elif source.assigned.redeliver_in_order(message):
            source.suspended = True

    return hold_up


def _never_commit_a_start_at_0(original: Any) -> Callable[..., Any]:
    async def take(self: Any, *arguments: Any, **options: Any) -> Any:
        source = await original(self, *arguments, **options)
        source.assigned.committed = source.assigned.committed or source.assigned.next_offset
        return source

    return take


def _believe_a_slave_that_knows_no_offset(original: Any) -> Callable[[Any, Any], Any]:
    async def read(self: Any, queue: Any) -> Any:
        return attrs.evolve(await original(self, queue), certain=True)

    return read


def _notify_nobody_that_a_consumer_is_closed(_: Any) -> Callable[[Any], None]:
    def close(self: Any) -> None:
        self.closed = True

    return close


def _forget_what_a_loop_had_in_hand(_: Any) -> Callable[[Any, Any], None]:
    return lambda self, message: None


def _acknowledge_what_a_loop_had_in_hand(_: Any) -> Callable[[Any, Any], None]:
    return lambda self, message: message.settle()


def _acknowledge_a_block_that_failed(_: Any) -> Callable[..., None]:
    def give_back_unfinished(messages: Any, *, ordered: bool) -> None:
        for message in messages:
            message.settle()

    return give_back_unfinished


def _keep_what_nobody_refers_to(_: Any) -> Callable[[Any], list[Any]]:
    return lambda self: []


def _acknowledge_with_any_iterator(original: Any) -> Callable[[Any], Any]:
    """The bug of acknowledging by the next call, whichever loop makes it."""
    last: dict[Any, Any] = {}

    async def step(self: Any) -> Any:
        if (before := last.pop(self._consumer, None)) is not None:
            before.settle()
        message = await original(self)
        last[self._consumer] = message
        return message

    return step


def _begin_new_queues_at_their_end(original: Any) -> Callable[..., Any]:
    async def first_offset(self: Any, queue: Any, position: Any, *, is_new: bool) -> int:
        return int(await original(self, queue, position, is_new=False))

    return first_offset


def _begin_anew_with_every_file(_: Any) -> Callable[[Any], None]:
    return lambda self: None


def _commit_without_a_word(_: Any) -> Callable[[Any], Any]:
    async def commit(self: Any) -> None:
        await self._keeper.commit(list(self.sources.values()), 3.0)

    return commit


def _ask_one_name_server(_: Any) -> Callable[[Any, Any, float], Any]:
    async def ask(self: Any, command: Any, timeout_seconds: float) -> Any:
        return await self._ask(self.addresses[0], command, timeout_seconds)

    return ask


def _keep_a_silent_connection(_: Any) -> Callable[[Any, Any, Any], None]:
    return lambda self, address, error: None


def _stay_with_a_black_hole(_: Any) -> Callable[..., float]:
    def give_all(left_seconds: float, retries_left: int, *, elsewhere: bool) -> float:
        del retries_left, elsewhere
        return left_seconds

    return give_all


def _call_a_send_that_was_out_not_stored(original: Any) -> Callable[[Any, Any, Any], Any]:
    def failed(self: Any, target: Any, error: Any) -> Any:
        failure = original(self, target, error)
        failure.may_have_been_stored = False
        return failure

    return failed


def _acknowledge_what_an_interrupted_thread_never_saw(_: Any) -> Callable[[Any], None]:
    def put_back(messages: Any) -> None:
        for message in messages:
            message.settle()

    return put_back


def _hand_out_what_was_given_away(_: Any) -> property:
    return property(lambda self: self.assigned.paused)


def _hand_out_what_is_paused(original: Any) -> Callable[[Any], bool]:
    def ready(self: Any) -> bool:
        paused, self.assigned.paused = self.assigned.paused, False
        try:
            return bool(original(self))
        finally:
            self.assigned.paused = paused

    return ready


def _hand_out_what_crossed_before_a_pause(_: Any) -> property:
    return property(lambda self: self.dropped or self.lock_expired)


def _continue_behind_a_seek(original: Any) -> Callable[[Any, Any, int], None]:
    return lambda self, source, offset: original(self, source, offset + 1)


def _acknowledge_what_was_in_hand_before_a_seek(original: Any) -> Callable[[Any, Any], bool]:
    def ack(self: Any, message: Any) -> bool:
        while message.state == FORGOTTEN and self.buffered and self.buffered[0].queue_offset <= message.queue_offset:
            self._done(self.buffered.popleft())
        return bool(original(self, message))

    return ack


def _never_commit_less_than_before(_: Any) -> Callable[[Any], dict[Any, int]]:
    return lambda assigned: {queue: new for queue, new, committed in assigned if committed is None or new > committed}


def _forget_a_pause_of_all_when_a_queue_is_taken(original: Any) -> Callable[[Any, Any, bool], Any]:
    async def take(self: Any, queue: Any, is_new: bool) -> None:
        await original(self, queue, is_new)
        if queue in self.sources:
            self.sources[queue].assigned.paused = False

    return take


def _keep_what_was_prefetched_before_a_seek(_: Any) -> Callable[[Any, Any, int], None]:
    def move(self: Any, queue: Any, offset: int) -> None:
        self._source(queue).assigned.next_offset = self._positions[queue] = offset

    return move


def _forget_what_a_lost_poll_took(_: Any) -> Callable[[Any, Any], None]:
    return lambda self, messages: None


def _count_a_queue_that_was_given_away(original: Any) -> Callable[[Any], None]:
    def stop(self: Any) -> None:
        held = self.held_bytes
        original(self)
        self.all_queues.held += held

    return stop


def end_a_reset_with_the_first_who_follows(original: Any) -> Callable[..., None]:
    def follow(self: Any, group: str, topic: str, queue_id: int, client: Any, now: float) -> None:
        original(self, group, topic, queue_id, client, now)
        if queues := self._queues.get((topic, group)):  # a planted bug may reach into private state
            queues.pop(queue_id, None)

    return follow


ORDERED = ("ordered", "ordered_kinds")
CLIENT_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], tuple[str, ...]], ...] = (
    ("acknowledge what was given back", AssignedQueue, "ack", _acknowledge_what_was_given_back, ("concurrent",)),
    ("acknowledge what is in hand at the end", Consumer, "close", _acknowledge_at_the_end, ("concurrent",)),
    ("give an ordered queue away in work", QueueKeeper, "_leave", _give_a_queue_away_in_work, ORDERED),
    ("forget the owners of queues on restart", QueueLocks, "load", _forget_locks_on_restart, ("ordered",)),
    (
        "acknowledge a block that failed",
        push_consumer,
        "give_back_unfinished",
        _acknowledge_a_block_that_failed,
        ("concurrent",),
    ),
    ("redeliver behind what comes next", AssignedQueue, "redeliver_in_order", _redeliver_behind_others, ORDERED),
    ("count a queue that was given away", AssignedQueue, "stop", _count_a_queue_that_was_given_away, ("concurrent",)),
)
"""Name, class, attribute, the function that makes the faulty replacement from the original, and the workloads that find it."""

WIDE_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], tuple[str, ...]], ...] = (
    ("stop a queue at the second retry", Redelivery, "_hold_up", _stop_a_queue_at_the_second_retry, ("ordered_kinds",)),
    ("never commit a start at 0", QueueKeeper, "take", _never_commit_a_start_at_0, ("beginnings",)),
    ("believe a slave that knows no offset", BrokerOffsets, "read", _believe_a_slave_that_knows_no_offset, ("beginnings",)),
    ("tell nobody that a consumer is closed", Line, "close", _notify_nobody_that_a_consumer_is_closed, ("closing",)),
    ("forget what a loop had in hand", Consumer, "give_back_soon", _forget_what_a_loop_had_in_hand, ("ordered_kinds",)),
    ("acknowledge a loop that was left", Consumer, "give_back_soon", _acknowledge_what_a_loop_had_in_hand, ("kinds",)),
    ("acknowledge with any iterator", Iteration, "__anext__", _acknowledge_with_any_iterator, ("kinds",)),
    ("keep what nobody refers to", AssignedQueue, "dropped", _keep_what_nobody_refers_to, ("kinds", "ordered_kinds")),
    ("begin new queues at their end", QueueKeeper, "_first_offset", _begin_new_queues_at_their_end, ("broadcasting",)),
    ("begin anew with every file", LocalOffsets, "load", _begin_anew_with_every_file, ("broadcasting",)),
    ("commit without a word", Consumer, "commit", _commit_without_a_word, ("kinds",)),
    ("ask one name server", NameServers, "ask", _ask_one_name_server, ("failover",)),
    ("keep a silent connection", Session, "_suspect_silent", _keep_a_silent_connection, ("failover",)),
    ("stay with a black hole", producer, "attempt_seconds", _stay_with_a_black_hole, ("failover",)),
    ("call a send that was out not stored", Transmitter, "failed", _call_a_send_that_was_out_not_stored, ("closing",)),
    (
        "acknowledge what an interrupted thread never saw",
        blocking,
        "put_back",
        _acknowledge_what_an_interrupted_thread_never_saw,
        ("blocking",),
    ),
    ("hand out what was given away", Source, "withheld", _hand_out_what_was_given_away, ("blocking",)),
    ("hand out what is paused", Source, "ready", _hand_out_what_is_paused, ("moving",)),
    (
        "hand out what crossed before a pause",
        Source,
        "withheld",
        _hand_out_what_crossed_before_a_pause,
        ("moving_threads",),
    ),
    ("continue behind the offset of a seek", QueueKeeper, "move_to", _continue_behind_a_seek, ("moving",)),
    (
        "acknowledge what was in hand before a seek",
        AssignedQueue,
        "ack",
        _acknowledge_what_was_in_hand_before_a_seek,
        ("moving",),
    ),
    ("never commit less than before", queue_keeping, "changed_offsets", _never_commit_less_than_before, ("moving",)),
    (
        "forget a pause of all when a queue is taken",
        Membership,
        "_take",
        _forget_a_pause_of_all_when_a_queue_is_taken,
        ("moving_tasks",),
    ),
    ("keep what was prefetched before a seek", PullConsumer, "_move", _keep_what_was_prefetched_before_a_seek, ("polling",)),
    ("forget what a lost poll took", PullConsumer, "unpoll", _forget_what_a_lost_poll_took, ("polling",)),
)
"""The same fields, for bugs that must be found while name servers and networks fail too."""
