"""Files that are deleted on request: expired ones of log and queues, and the queues of deleted topics."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.java_properties import write_properties

from .operator import Operator
from .workload import Workload


@attrs.define(eq=False)
class Files(Workload):
    """Cleaning deletes nothing that has not expired."""

    name: ClassVar[str] = "files"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
        }
    )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        task_status.started()
        while True:
            await operator.pause(0.2)
            if not self.scene.healed:
                entries = {"fileReservedTime": str(self.scene.rng.choice((24, 72)))}
                await operator.ask_master(RequestCode.UPDATE_BROKER_CONFIG, body=write_properties(entries).encode())
                await operator.ask_master(self.scene.rng.choice(sorted(self.codes)))
