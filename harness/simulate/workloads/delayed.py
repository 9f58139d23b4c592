"""Delayed messages, and the checks that none is delivered too early and none is lost."""

from __future__ import annotations

import contextlib
from itertools import count
from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode

from .plain import SEND_SECONDS
from .workload import Workload

TOPIC = "D"
DELAY_LEVELS = "1s 5s 1s 2s 2s 4s"
"""The delay levels of the broker; the third and later ones are for retries."""
DELAYS_MS = (1000, 5000)
"""The delays of the first two levels, in milliseconds."""


def _hexadecimal(host: str) -> str:
    """An address as the id of a message has it."""
    return bytes(map(int, host.split("."))).hex().upper()


@attrs.define(eq=False)
class Delayed(Workload):
    """A delayed message is delivered, if it was acknowledged, and never before its due time by the clock of the broker.

    The broker that stores a message computes the due time. In a group that may be another one than the client had asked, or
    than delivers the message, and their clocks may differ.
    """

    name: ClassVar[str] = "delayed"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.SEND_MESSAGE_V2})
    came: int = 0
    seen: set[int] = attrs.field(factory=set[int])
    wanted: set[int] = attrs.field(factory=set[int])
    """The messages that must come: acknowledged, and sent before all faults ended."""
    stored_by: dict[int, str] = attrs.field(factory=dict[int, str])
    """By number of the message, the hexadecimal address of the broker that acknowledged it."""
    early: list[str] = attrs.field(factory=list[str])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with (
            open_producer(scene.namesrv, "d", world=world, send_timeout_seconds=SEND_SECONDS) as producer,
            open_consumer(scene.namesrv, "dg", TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send, producer)
            task_status.started()
            async for message in consumer:
                number, host, due_ms, jumps_back = message.body.decode().split(";")
                clock = scene.master.clock
                self.came += 1
                self.seen.add(int(number))
                same_clock = host == scene.master.host and int(jumps_back) == clock.jumps_back
                same_clock &= self.stored_by.get(int(number)) == message.offset_message_id[:8] == _hexadecimal(host)
                if same_clock and (now_ms := clock.wall_ms()) < int(due_ms):
                    self.early.append(f"a message that is due at {due_ms} ms came at {now_ms} ms")

    async def _send(self, producer: Producer) -> None:
        scene = self.scene
        for number in count():
            level, node = scene.rng.randint(1, len(DELAYS_MS)), scene.master
            due_ms, healed = node.clock.wall_ms() + DELAYS_MS[level - 1], scene.healed
            with contextlib.suppress(ClientError):
                body = f"{number};{node.host};{due_ms};{node.clock.jumps_back}".encode()
                result = await producer.send(Message(TOPIC, body, delay_level=level))
                self.stored_by[number] = result.offset_message_id[:8]
                if result.status.name == "SEND_OK" and not healed:
                    self.wanted.add(number)
            await trio.sleep(scene.pause_seconds(0.2))

    def lacking(self) -> str:
        if not self.scene.history.consumers_follow(self.scene.epoch):
            return ""
        missing = sorted(self.wanted - self.seen)
        return f"{len(missing)} messages have not come: {missing[:5]}" if missing else ""

    def violations(self) -> list[str]:
        return self.early

    def counts(self) -> dict[str, int]:
        return {"delayed": self.came}
