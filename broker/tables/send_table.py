"""The numbered sends that are in the log, by producer: which are repetitions, and which come from a replaced producer. Pure.

Invariant: the table is a function of the log. `apply` and `fence` are called with what the log holds, in its order, on every
node and at every start; so all nodes answer a repeated send alike. What follows from a request is decided by `look_up`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any, cast

import attrs

from ...message.send_number import SendNumber

WINDOW_MAX = 65_536
"""The most sends of one producer that are kept, if so many are pending at once. A producer says with each send which earlier
ones it will not repeat, and these are forgotten at once; of more pending ones, those with the lowest sequences are forgotten,
and their repetition is refused."""
PRODUCERS_MAX = 16_384
"""The most producers that are kept. For more, the one that has sent nothing for longest is forgotten: then the repetition of
its last sends would be stored again, and an epoch that was replaced would be accepted."""
SENDS_MAX = 131_072
"""The most sends of all producers together, about 25 MB; for more, producers are forgotten as for `PRODUCERS_MAX`."""
EXPIRY_MS = 24 * 3600 * 1000
"""A producer is forgotten when so much later a message of a new producer is stored, by the store timestamps in the log."""


class Verdict(Enum):
    """What a numbered send is."""

    NEW = auto()
    REPEATED = auto()
    """An earlier request has stored it."""
    FORGOTTEN = auto()
    """It may have been stored: its sequence is below those that are kept."""
    FENCED = auto()
    """Another producer with the same id and a higher epoch has replaced its sender."""


Place = tuple[int, int]
"""The physical offset of a message, and the size of its record."""
_NEW: tuple[Verdict, Place | None] = (Verdict.NEW, None)
_Send = tuple[int, int, int]
"""Sequence, physical offset and size. A plain tuple, because there may be many."""


@attrs.define
class _Producer:
    """What is known of a producer."""

    epoch: int
    floor: int = -1
    """Sends with this sequence or a lower one are not kept."""
    last_ms: int = 0
    """The store timestamp of its last message."""
    sends: list[_Send] = attrs.field(factory=list[_Send])
    """The sends that are kept, in the order of their sequences."""


@attrs.define(eq=False, repr=False)
class SendTable:
    """The numbered sends of one log."""

    producers: OrderedDict[str, _Producer] = attrs.field(factory=OrderedDict[str, _Producer])
    """By producer id, the one that has sent nothing for longest first."""
    complete_since_ms: int = 0
    """The table has every producer that has stored a message after this store timestamp."""
    changes: int = 0
    """Counts changes, for the table's file."""
    _sends: int = 0
    """How many sends all producers together have."""

    def apply(self, number: SendNumber, physical_offset: int, size: int, timestamp: int) -> None:
        """Enter a message of the log; one that is already entered changes nothing."""
        producer_id, epoch, sequence, oldest = number
        producer = self._producer(producer_id, epoch, timestamp)
        if producer is None:
            return
        sends = producer.sends
        if not sends or sends[-1][0] < sequence:
            if sequence > producer.floor:
                sends.append((sequence, physical_offset, size))
                self._sends += 1
        else:
            self._insert(producer, (sequence, physical_offset, size))
        if oldest > producer.floor + 1:
            self._forget_sends(producer, bisect_left(sends, (oldest,)), oldest - 1)
        if len(sends) > WINDOW_MAX:
            surplus = WINDOW_MAX // 8 + 1  # several at once, because each removal moves the rest
            self._forget_sends(producer, surplus, sends[surplus - 1][0])
        while self._sends > SENDS_MAX and len(self.producers) > 1:
            self._forget_producer()

    def fence(self, producer_id: str, epoch: int, timestamp: int) -> None:
        """Replace all producers with this id and a lower epoch."""
        self._producer(producer_id, epoch, timestamp)

    def _producer(self, producer_id: str, epoch: int, timestamp: int) -> _Producer | None:
        """The producer of an epoch, created if it is new; None if a higher epoch has replaced it."""
        producers = self.producers
        producer = producers.get(producer_id)
        if producer is None:
            producer = producers[producer_id] = _Producer(epoch)
            if len(producers) > PRODUCERS_MAX:
                self._forget_producer()
            while next(iter(producers.values())).last_ms < timestamp - EXPIRY_MS and len(producers) > 1:
                self._forget_producer()
        elif producer.epoch > epoch:
            return None
        else:
            producers.move_to_end(producer_id)
            if producer.epoch < epoch:
                self._forget_sends(producer, len(producer.sends), -1)
                producer.epoch, producer.floor = epoch, -1
        producer.last_ms = timestamp
        self.changes += 1
        return producer

    def _insert(self, producer: _Producer, send: _Send) -> None:
        """Enter a send that is not the newest: concurrent sends arrive in any order."""
        sends = producer.sends
        at = bisect_left(sends, send[:1])
        if at < len(sends) and sends[at][0] == send[0]:
            if send[1] < sends[at][1]:  # the entry is from a part of the log that was truncated since
                sends[at] = send
        elif send[0] > producer.floor:
            sends.insert(at, send)
            self._sends += 1

    def _forget_sends(self, producer: _Producer, count: int, floor: int) -> None:
        del producer.sends[:count]
        self._sends -= count
        producer.floor = max(producer.floor, floor)

    def _forget_producer(self) -> None:
        _, producer = self.producers.popitem(last=False)
        self._sends -= len(producer.sends)
        self.complete_since_ms = max(self.complete_since_ms, producer.last_ms)

    def look_up(self, number: SendNumber) -> tuple[Verdict, Place | None]:
        """What a send is; for one that is repeated, also where its message is."""
        producer = self.producers.get(number.producer_id)
        if producer is None or producer.epoch < number.epoch:
            return _NEW
        if producer.epoch > number.epoch:
            return Verdict.FENCED, None
        if number.sequence <= producer.floor:
            return Verdict.FORGOTTEN, None
        sends = producer.sends
        if not sends or sends[-1][0] < number.sequence:  # nearly always
            return _NEW
        at = bisect_left(sends, (number.sequence,))
        if sends[at][0] != number.sequence:
            return _NEW
        return Verdict.REPEATED, sends[at][1:]

    def remove(self, number: SendNumber) -> None:
        """Remove a send, if it is there, whose message is not where it was: that part of the log was replaced."""
        if self.look_up(number)[0] is Verdict.REPEATED:
            sends = self.producers[number.producer_id].sends
            del sends[bisect_left(sends, (number.sequence,))]
            self._sends -= 1
            self.changes += 1

    def cut(self, physical_offset: int) -> None:
        """Forget the messages at or behind a physical offset, because the log was cut there."""
        for producer in self.producers.values():
            if any(send[1] >= physical_offset for send in producer.sends):
                left = [send for send in producer.sends if send[1] < physical_offset]
                self._sends -= len(producer.sends) - len(left)
                producer.sends = left
                self.changes += 1

    def move(self, offsets: Mapping[int, int]) -> None:
        """Give each message the physical offset that it has in a copy of the log; a negative one says that it has expired."""
        for producer in self.producers.values():
            producer.sends = [(sequence, offsets[at], size) for sequence, at, size in producer.sends]

    def clear(self, now_ms: int) -> None:
        """Forget everything, because the log begins anew, with what other nodes stored before `now_ms`."""
        self.producers.clear()
        self._sends, self.complete_since_ms = 0, now_ms
        self.changes += 1

    def to_json(self) -> dict[str, Any]:
        """The content of the table's file."""
        return {
            "completeSince": self.complete_since_ms,
            "producers": {name: [each.epoch, each.floor, each.last_ms, each.sends] for name, each in self.producers.items()},
        }

    def load(self, stored: Mapping[str, Any]) -> None:
        """Replace the content with that of a file.

        Raises:
            KeyError, TypeError, ValueError: the file has another shape. The content is undefined.
        """
        self.producers.clear()
        self._sends = 0
        self.complete_since_ms = int(stored["completeSince"])
        for name, (epoch, floor, last_ms, sends) in cast("Mapping[str, Any]", stored["producers"]).items():
            kept = [(int(sequence), int(at), int(size)) for sequence, at, size in cast("Iterable[Any]", sends)]
            self.producers[name] = _Producer(int(epoch), int(floor), int(last_ms), kept)
            self._sends += len(kept)
