"""An administrator that sends requests to one server at a time, each on its own connection."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import trio

from ledgermq.message.json import dumps
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, wire_fields
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.history import Change, Deletion
from ledgermq.world.network import Address
from ledgermq.world.real import World

from ..scene import NAMESRV, Scene
from .workload import Workload

ASK_SECONDS = 3.0
TOPIC_OF_TWO_QUEUES: Mapping[str, Any] = {
    "defaultTopic": "TBW102",
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}
"""The fields of a request that creates a topic, except its name."""


@attrs.define(eq=False)
class Operator:
    """Sends requests, and records in the history what they were to change."""

    scene: Scene
    world: World = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.world = self.scene.client_world()

    async def ask(
        self, address: Address, code: RequestCode, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> RemotingCommand | None:
        """Send a request; returns None if its result is unknown."""
        command = RemotingCommand(code, wire_fields(fields or {}), body)
        try:
            async with connected(address, network=self.world.network) as channel:
                answer = await channel.call(command, ASK_SECONDS)
        except RemotingError as error:
            self.scene.note(f"{code.name} at {address}: {type(error).__name__}")
            return None
        self.scene.note(f"{code.name} at {address}: {answer.code} {answer.remark or ''}")
        return answer

    async def ask_master(
        self, code: RequestCode, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> RemotingCommand | None:
        return await self.ask(self.scene.asked.address, code, fields, body)

    async def ask_name_servers(
        self, code: RequestCode, fields: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> list[RemotingCommand | None]:
        addresses = [Address(process.host, NAMESRV.port) for process in self.scene.name_servers]
        return [await self.ask(address, code, fields, body) for address in addresses]

    async def change(
        self, values: Mapping[str, str | None], address: Address, code: RequestCode, fields: Mapping[str, Any], body: Any = None
    ) -> bool:
        """Send a request that gives settings these values; returns whether it was answered with SUCCESS."""
        scene = self.scene
        changes = [Change(key, value, trio.current_time(), scene.epoch) for key, value in values.items()]
        scene.history.changes += changes
        answer = await self.ask(address, code, fields, dumps(body) if body is not None else b"")
        # After any other answer it is unknown whether something was changed; it may be in the log and not yet on a slave.
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return False
        for change in changes:
            change.answered_at = trio.current_time()
        return True

    async def create_topic(self, topic: str, queues: int, perm: int = 6) -> bool:
        """Create or change a topic on the master; returns whether that was answered with SUCCESS."""
        queues_of_it = {"readQueueNums": queues, "writeQueueNums": queues, "perm": perm}
        fields = {**TOPIC_OF_TWO_QUEUES, **queues_of_it, "topic": topic}
        values = {f"topic {topic}": f"{queues}/{perm}"}
        return await self.change(values, self.scene.asked.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_topic(self, topic: str) -> bool:
        """Delete a topic on the master and on the name servers; returns whether the master has answered."""
        scene = self.scene
        deletion = Deletion(topic, trio.current_time(), scene.epoch)
        scene.history.deletions.append(deletion)
        answer = await self.ask_master(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            deletion.answered_at = trio.current_time()
        await self.ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        return deletion.answered_at < float("inf")

    async def pause(self, share: float) -> None:
        """Wait for a moment drawn from a share of a node's life."""
        await trio.sleep(self.scene.pause_seconds(share))


@attrs.define(eq=False)
class Changing(Workload):
    """A workload whose operator makes changes until all faults have ended, while another task looks at what servers hold."""

    pause_share: ClassVar[float]
    """The pause between two changes, as a share of a life."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.look_often)
            task_status.started()
            while True:
                if not self.scene.healed:
                    await self.change(operator)
                await operator.pause(self.pause_share)

    @abstractmethod
    async def change(self, operator: Operator) -> None:
        """Make one change, drawn from the seed."""

    @abstractmethod
    async def look_often(self) -> None:
        """Record what servers hold, with a pause between two looks, until cancelled."""
