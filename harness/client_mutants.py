"""Bugs of clients, and of what brokers keep for them, that the simulator of whole nodes has to find."""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledgermq.broker.locks import QueueLocks
from ledgermq.client.assigned import AssignedQueue
from ledgermq.client.consumer import Consumer
from ledgermq.client.queue_keeping import QueueKeeper
from ledgermq.client.received import GIVEN_BACK, HANDED_OUT


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
            for message in list(source.assigned._pending.values()):  # noqa: SLF001 - a bug knows no bounds
                if message.state == HANDED_OUT:
                    source.assigned.ack(message)
        await original(self)

    return close


def _give_a_queue_away_in_work(original: Any) -> Callable[..., Any]:
    async def leave(self: Any, source: Any, locked: bool) -> None:
        await self.unlock(source)
        self.leaving.discard(source)
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


CLIENT_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any]], ...] = (
    ("acknowledge what was given back", AssignedQueue, "ack", _acknowledge_what_was_given_back),
    ("acknowledge what is in hand at the end", Consumer, "close", _acknowledge_at_the_end),
    ("give an ordered queue away in work", QueueKeeper, "_leave", _give_a_queue_away_in_work),
    ("forget the owners of queues on restart", QueueLocks, "load", _forget_locks_on_restart),
    ("redeliver behind what comes next", AssignedQueue, "redeliver_in_order", _redeliver_behind_others),
)
"""Name, class, attribute, and what makes the bug of what is there."""
