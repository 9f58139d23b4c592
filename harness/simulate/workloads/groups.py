"""Consumer groups that are created, changed and deleted, singly and several at once, and denied reading."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Look

from ..scene import Node
from .operator import Changing, Operator
from .workload import LOOK_SECONDS

GROUPS = ("gx0", "gx1", "gx2")
TOPIC = "T"


@attrs.define(eq=False)
class Groups(Changing):
    """An acknowledged change of a group is kept, and a slave has it too in the end."""

    name: ClassVar[str] = "groups"
    pause_share: ClassVar[float] = 0.1
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        }
    )
    _retries: int = 0
    _looks: int = 0

    async def change(self, operator: Operator) -> None:
        rng, address = self.scene.rng, self.scene.asked.address
        group, kind = rng.choice(GROUPS), rng.randrange(4)
        if kind == 0:
            config = self._config(group)
            await operator.change(
                {group: str(self._retries)}, address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config
            )
        elif kind == 1:
            configs = [self._config(name) for name in GROUPS[:2]]
            values = {str(config["groupName"]): str(config["retryMaxTimes"]) for config in configs}
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
            await operator.change(values, address, code, {}, {"groupConfigList": configs})
        elif kind == 2:
            fields = {"groupName": group, "cleanOffset": True}
            await operator.change({group: None}, address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        else:
            readable = rng.random() < 0.5
            key = f"{group} may read {TOPIC}"
            fields = {"group": group, "topic": TOPIC, "readable": readable}
            await operator.change({key: str(readable)}, address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)

    def _config(self, group: str) -> dict[str, Any]:
        self._retries += 1
        return {"groupName": group, "retryQueueNums": 1, "retryMaxTimes": self._retries}

    async def look_often(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            broker = self.scene.serving
            if broker is not None:
                self._look_at(self.scene.master, broker)

    def started(self, node: Node, broker: Broker) -> None:
        if self.scene.is_master(node):
            self._look_at(node, broker)

    def _look_at(self, node: Node, broker: Broker) -> None:
        for group, value in self._values(broker).items():
            self._looks += 1
            self.scene.history.looks.append(Look(group, value, node.host, trio.current_time(), self.scene.epoch))

    def _values(self, broker: Broker) -> dict[str, str | None]:
        values: dict[str, str | None] = {}
        for group in GROUPS:
            config = broker.groups.get(group)
            values[group] = str(config.retry_max_times) if config is not None else None
        return values

    def lacking(self) -> str:
        master = self.scene.serving
        for node in self.scene.slaves:
            if node.broker is not None and master is not None and self._values(node.broker) != self._values(master):
                return f"{node.host} has the groups {self._values(node.broker)}, its master {self._values(master)}"
        return ""

    def counts(self) -> dict[str, int]:
        return {"group_looks": self._looks}
