"""Pulls from any node, as a reader sends them that does not know the present leader.

A message that any node returned must stay at its offset, and the end of the queue that a leader returns must be after every
message that was acknowledged before the pull began.
"""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.message.layout import decode_records
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.history import Pull, Queue, Read

from ..scene import Node
from .operator import Operator
from .plain import GROUP, READ_AT_ONCE, TOPIC
from .workload import Workload, number_in

QUEUES = 2
ANSWERED = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""Answers that determine whether the queue has a message at an offset."""


@attrs.define(eq=False)
class Pulls(Workload):
    """Checks the log as a linearizable queue."""

    name: ClassVar[str] = "pulls"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.PULL_MESSAGE})
    _pulls: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        task_status.started()
        while True:
            await operator.pause(0.04)
            rng, scene = self.scene.rng, self.scene
            node = scene.master if rng.random() < 0.6 else rng.choice(scene.nodes)
            queue: Queue = (TOPIC, rng.randrange(QUEUES))
            ends = [put.queue_offset for put in scene.history.puts if put.queue == queue and put.acknowledged]
            newest = max(ends, default=0)
            if rng.random() < 0.2:
                await self._ask_for_end(operator, node, queue)
            else:
                offset = newest if rng.random() < 0.5 else max(newest - rng.randrange(-1, READ_AT_ONCE), 0)
                await self._pull(operator, node, queue, offset)

    async def _ask_for_end(self, operator: Operator, node: Node, queue: Queue) -> None:
        fields = {"topic": queue[0], "queueId": queue[1]}
        asked = self._question(node, queue)
        answer = await operator.ask(node.address, RequestCode.GET_MAX_OFFSET, fields)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self._note(attrs.evolve(asked, queue_offset=int(answer.ext["offset"]), empty=True))

    def _question(self, node: Node, queue: Queue) -> Pull:
        return Pull(queue, 0, empty=False, began=trio.current_time(), host=node.host, led=self.scene.is_master(node))

    def _note(self, pull: Pull) -> bool:
        """Record an answer; returns whether its node was the leader both before and after the pull, which is recorded too."""
        leader = self.scene.master
        leads = pull.led and leader.host == pull.host and self.scene.is_master(leader)
        self.scene.history.pulls.append(attrs.evolve(pull, led=leads))
        return leads

    async def _pull(self, operator: Operator, node: Node, queue: Queue, offset: int) -> None:
        fields = {
            "consumerGroup": GROUP,
            "topic": queue[0],
            "queueId": queue[1],
            "queueOffset": offset,
            "maxMsgNums": READ_AT_ONCE,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        asked = self._question(node, queue)
        answer = await operator.ask(node.address, RequestCode.PULL_MESSAGE, fields)
        if answer is None or answer.code not in ANSWERED:
            return
        expired = int(answer.ext["nextBeginOffset"]) > offset
        led = self._note(attrs.evolve(asked, queue_offset=offset, empty=answer.code != ResponseCode.SUCCESS and not expired))
        self._pulls += 1
        if answer.code == ResponseCode.SUCCESS:
            self._note_reads(answer, queue, f"pull {self._pulls} at {node.host}", led=led)

    def _note_reads(self, answer: RemotingCommand, queue: Queue, reader: str, *, led: bool) -> None:
        history, life = self.scene.history, self.scene.epoch
        # A node whose log is another one than its leader's shows what the group has lost until an operator cuts its log.
        sent = {} if led else {put.number: put.epoch for put in history.puts}
        for message in decode_records(answer.body):
            number = number_in(message.body)
            history.reads.append(Read(queue, message.queue_offset, number, sent.get(number, life), reader))

    def counts(self) -> dict[str, int]:
        led = sum(pull.led for pull in self.scene.history.pulls)
        return {"pulls_judged": led, "pulls": self._pulls}
