"""The broker's pure cores on an event heap: thousands of runs a minute, without event loop and disk.

Three cores are compared with models that know the expected result: the acknowledgements of slaves, held pulls, and committed
offsets across restarts. The docstring of each method that drives a core is the property that must hold.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable

import attrs
import orjson

from ledgermq.broker.requests.hold import HeldPull, HeldPulls
from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.broker.tables.persistence import encoded
from ledgermq.ha.classic.acks import Acknowledgements
from ledgermq.message.json import loads
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.history import History

from ..outcome import Outcome, describe_error

EVENTS = 400
"""The number of steps of each core in one run."""


@attrs.frozen(kw_only=True)
class CoresDraw:
    """The conditions of one run, drawn from its seed; a failure prints them."""

    seed: int
    replicas: int
    slaves: int
    connections: int
    loss: float

    @classmethod
    def of(cls, seed: int) -> CoresDraw:
        rng = random.Random(seed ^ 0xC0)  # noqa: S311 - never secrets
        return cls(
            seed=seed,
            replicas=rng.choice((2, 2, 3)),
            slaves=rng.randint(1, 4),
            connections=rng.randint(2, 6),
            loss=rng.choice((0.0, 0.05, 0.3)),
        )


@attrs.define(eq=False)
class EventHeap:
    """Virtual time: events run in the order of their due times, and equal ones in the order of their creation."""

    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list[tuple[float, int, Callable[[], None]]])
    _made: int = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (self.now + seconds, self._made, event))

    def run(self) -> None:
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()


@attrs.define(eq=False)
class CoresRun:
    """The run of one seed."""

    draw: CoresDraw
    rng: random.Random
    counts: Counter[str] = attrs.field(factory=Counter[str])
    trace: list[str] = attrs.field(factory=list[str])
    violations: list[str] = attrs.field(factory=list[str])

    def expect(self, holds: bool, claim: str) -> None:
        if not holds:
            self.violations.append(claim)

    # ---------------------------------------------------------------- replication

    def replicate(self) -> None:
        """A put that is answered PUT_OK is on as many nodes as required, and every put is answered once, by its deadline."""
        heap, rng, draw = EventHeap(), self.rng, self.draw
        acks = Acknowledgements(draw.replicas)
        held = [0] * draw.slaves
        joined: set[int] = set()
        answers: dict[int, PutStatus] = {}
        log_end = 0

        def answered(end: int, status: PutStatus) -> None:
            self.expect(end not in answers, f"the put that ends at {end} was answered twice")
            answers[end] = status
            self.trace.append(f"{heap.now:.3f} put to {end}: {status.name}")
            copies = 1 + sum(offset >= end for offset in held)
            if status is PutStatus.PUT_OK:
                self.counts["acknowledged"] += 1
                self.expect(
                    copies >= draw.replicas, f"PUT_OK for {end} with {copies} of {draw.replicas} copies: slaves hold {held}"
                )

        def put() -> None:
            nonlocal log_end
            log_end += rng.randint(1, 500)
            end = log_end
            acks.wait(end, heap.now + 3.0, lambda status: answered(end, status))
            self.counts["puts"] += 1
            heap.after(3.5, lambda: self.expect(end in answers, f"the put that ends at {end} still waits after its deadline"))

        def receive(slave: int) -> None:
            if slave in joined:
                held[slave] = rng.randint(held[slave], log_end)
                if rng.random() < draw.loss:
                    self.counts["report_lost"] += 1
                    return
                # Reports of one connection arrive in order, so a delayed report is simply a later one.
                offset = held[slave]
                acks.hold(slave, offset)
                self.trace.append(f"{heap.now:.3f} slave {slave} holds {offset}")

        def come_or_go(slave: int) -> None:
            if slave in joined:
                joined.discard(slave)
                acks.leave(slave)
                self.counts["slave_lost"] += 1
            else:
                joined.add(slave)
                acks.hold(slave, held[slave])

        at = 0.0
        for _ in range(EVENTS):
            at += rng.random() * 0.2
            slave = rng.randrange(draw.slaves)
            heap.after(at, rng.choice((put, put, lambda s=slave: receive(s), lambda s=slave: receive(s))))
            if rng.random() < 0.05:
                heap.after(at, lambda s=slave: come_or_go(s))  # type: ignore[misc]
            heap.after(at, lambda: acks.expire(heap.now))
        for tick in range(40):
            heap.after(at + 0.1 * tick, lambda: acks.expire(heap.now))
        heap.run()

    # ---------------------------------------------------------------- held pulls

    def hold_pulls(self) -> None:
        """A held pull is released once, by its message or at its deadline, or never if its connection closed. None remains."""
        rng, heap = self.rng, EventHeap()
        holds: HeldPulls[int] = HeldPulls()
        waiting: dict[int, HeldPull[int]] = {}
        ends = dict.fromkeys(range(3), 0)

        def released(pulls: Iterable[HeldPull[int] | None], why: str) -> None:
            for pull in filter(None, pulls):
                self.expect(waiting.pop(pull.request, None) is pull, f"pull {pull.request} of nobody was released by {why}")
                self.counts["released"] += 1

        def hold() -> None:
            number = self.counts["held"] = self.counts["held"] + 1
            queue_id = rng.randrange(3)
            pull = HeldPull(
                "T", queue_id, ends[queue_id], None, heap.now + rng.choice((1, 5)), rng.randrange(connections), number
            )
            self.expect(holds.hold(pull), "a pull was declined though there is room")
            waiting[number] = pull

        def arrive() -> None:
            queue_id = rng.randrange(3)
            ends[queue_id] += 1
            wanted = {number for number, pull in waiting.items() if pull.queue_id == queue_id and pull.offset < ends[queue_id]}
            for queue, newest in holds.arrived([("T", queue_id, ends[queue_id], 0)]).items():
                released(holds.matching(queue, newest), "a message")
            late = wanted & waiting.keys()
            self.expect(not late, f"pulls {sorted(late)} sleep though their message has come")

        def sweep() -> None:
            released(holds.due(heap.now), "time")
            late = [number for number, pull in waiting.items() if pull.deadline <= heap.now]
            self.expect(not late, f"pulls {late} wait beyond their deadline")

        def close() -> None:
            owner = rng.randrange(connections)
            for number in [number for number, pull in waiting.items() if pull.owner == owner]:
                del waiting[number]
            holds.drop(owner)
            self.counts["connection_closed"] += 1
            self.expect(len(holds) == len(waiting), f"{len(holds)} pulls are held after a close, {len(waiting)} should be")

        connections = self.draw.connections
        for step in range(EVENTS):
            heap.after(step * 0.05, rng.choice((hold, hold, hold, arrive, sweep, close)))
        heap.after(EVENTS * 0.05 + 10, sweep)
        heap.run()
        self.expect(len(holds) == 0, f"{len(holds)} pulls are held for ever")

    # ---------------------------------------------------------------- committed offsets

    def commit_offsets(self) -> None:
        """A committed offset never decreases; after a restart it is the one that was written to the file last."""
        rng = self.rng
        offsets, written = ConsumerOffsets(), dict[tuple[str, str, int], int]()
        now: dict[tuple[str, str, int], int] = {}
        for _ in range(EVENTS):
            if rng.random() < 0.05:
                stored = loads(orjson.dumps(encoded(offsets.to_json())))
                written = dict(now)
                self.counts["restart"] += 1
                offsets = ConsumerOffsets()
                offsets.load(stored)
                for (group, topic, queue_id), offset in written.items():
                    found = offsets.query(group, topic, queue_id)
                    self.expect(found == offset, f"{group} had {offset} of {topic}-{queue_id} and has {found} after a restart")
            key = (f"g{rng.randrange(3)}", rng.choice(("T", "%RETRY%g1")), rng.randrange(4))
            now[key] = now.get(key, 0) + rng.randint(0, 32)
            offsets.commit(*key, now[key])
            self.counts["commits"] += 1


CORES: tuple[Callable[[CoresRun], None], ...] = (CoresRun.replicate, CoresRun.hold_pulls, CoresRun.commit_offsets)


def simulate_cores(seed: int) -> Outcome:
    """Run one seed; an exception of a core counts as a violation."""
    draw = CoresDraw.of(seed)
    run = CoresRun(draw, random.Random(seed ^ 0x5EED))  # noqa: S311 - never secrets
    for core in CORES:
        try:
            core(run)
        except Exception as error:  # noqa: BLE001 - every exception is a finding
            run.violations.append(f"{core.__name__}: {describe_error(error)}")
    return Outcome(History(sync_flush=True), run.violations, run.counts, drawn=str(draw), trace=run.trace)
