"""Sends with numbers that are repeated again and again, answered or not, by a producer that is replaced now and then."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import attrs
import trio

from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.history import Put

from .operator import TOPIC_OF_TWO_QUEUES, Operator
from .workload import Workload

TOPIC, PRODUCER = "N", "simulated"
KEPT_MAX = 6
"""How many of the last requests may be repeated; the producer says with each request that older ones are not."""
FENCES, BATCHES, REPEATS = 0.1, 0.4, 0.6
"""How often the producer is replaced, and how many requests are batches; and what share of steps repeats an old request."""


@attrs.define(eq=False)
class _Request:
    """One send, of one message or several."""

    epoch: int
    sequence: int
    puts: list[Put]


@attrs.define(eq=False)
class Numbered(Workload):
    """However often a request is repeated, at whichever node leads, each of its messages is stored once at most."""

    name: ClassVar[str] = "numbered"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.FENCE_PRODUCER}
    )
    _kept: deque[_Request] = attrs.field(factory=deque[_Request])
    _epoch: int = 0
    _sequence: int = 0
    _repetitions: int = 0
    _fenced: int = 0
    _violations: list[str] = attrs.field(factory=list[str])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene, operator = self.scene, Operator(self.scene)
        await operator.ask_master(RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC_OF_TWO_QUEUES, "topic": TOPIC})
        task_status.started()
        while True:
            drawn = scene.rng.random()
            if self._kept and drawn < REPEATS:
                await self._send(operator, scene.rng.choice(self._kept))
            elif drawn > 1 - FENCES:
                await self._fence(operator)
            else:
                request = self._new_request()
                async with trio.open_nursery() as nursery:  # the repetition may overtake the answer to the first request
                    for _ in range(scene.rng.randint(1, 3)):
                        nursery.start_soon(self._send, operator, request)
            await operator.pause(0.02)

    def _new_request(self) -> _Request:
        scene = self.scene
        count = scene.rng.randint(2, 4) if scene.rng.random() < BATCHES else 1
        numbers = [scene.next_number() for _ in range(count)]
        # Repeated requests may be stored in any order, so each one counts as a producer of its own.
        batch = numbers[0] if count > 1 else 0
        puts = [Put(number, -numbers[0], (TOPIC, 0), scene.epoch, batch=batch) for number in numbers]
        scene.history.puts += puts
        request = _Request(self._epoch, self._sequence, puts)
        self._sequence += count
        self._kept.append(request)
        if len(self._kept) > KEPT_MAX:
            self._kept.popleft()
        return request

    async def _send(self, operator: Operator, request: _Request) -> None:
        puts, rng = request.puts, self.scene.rng
        oldest = min((each.sequence for each in self._kept if each.epoch == request.epoch), default=request.sequence)
        fields = {
            "a": "np",
            "b": TOPIC,
            "c": "TBW102",
            "d": 2,
            "e": rng.randrange(2),
            "f": 0,
            "g": operator.world.clock.wall_ms(),
            "h": 0,
            "i": "",
            "j": 0,
            "k": False,
            "m": len(puts) > 1,
            "sendNumber": f"{PRODUCER}.{request.epoch}.{request.sequence}.{oldest}",
        }
        bodies = [b"%d;" % put.number for put in puts]
        code, body = RequestCode.SEND_MESSAGE_V2, bodies[0]
        if len(puts) > 1:
            code, body = RequestCode.SEND_BATCH_MESSAGE, encode_batch((0, each, b"") for each in bodies)
        answer = await operator.ask_master(code, fields, body)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._fenced += answer is not None and answer.code == ResponseCode.PRODUCER_FENCED
            return
        repeated = answer.ext.get("repeated") == "true"
        self._repetitions += repeated
        if request.epoch < self._epoch and not repeated and self.scene.history.survives(0, self.scene.epoch):
            self._violations.append(f"{bodies[0]!r} of epoch {request.epoch} was stored after epoch {self._epoch} began")
        first = int(answer.ext["queueOffset"])
        offsets = map(int, answer.ext.get("queueOffsets", ",".join(str(first + at) for at in range(len(puts)))).split(","))
        for put, offset in zip(puts, offsets, strict=True):
            put.queue, put.queue_offset = (TOPIC, int(answer.ext["queueId"])), offset
            put.acknowledged, put.answered = True, self.scene.epoch

    async def _fence(self, operator: Operator) -> None:
        answer = await operator.ask_master(RequestCode.FENCE_PRODUCER, {"producer": PRODUCER})
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._epoch, self._sequence = int(answer.ext["epoch"]), 0

    def violations(self) -> list[str]:
        return self._violations

    def counts(self) -> dict[str, int]:
        return {"sends_repeated": self._repetitions, "sends_fenced": self._fenced}
