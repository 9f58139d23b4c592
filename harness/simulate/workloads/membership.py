"""Changes of a DLedger group in use: leadership is transferred, and members are added, removed and added again."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.broker.modes.dledger import replica_settings
from ledgermq.remoting.codes import RequestCode, ResponseCode

from ..group import GroupScene, peer_of, replica_of
from ..scene import Node
from .operator import Operator
from .workload import Workload


@attrs.define(eq=False)
class Membership(Workload):
    """A change loses nothing acknowledged, whichever node fails meanwhile. The group never has fewer voters than at first."""

    name: ClassVar[str] = "membership"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.CHANGE_DLEDGER_GROUP})
    _changes: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        group, operator = self.scene, Operator(self.scene)
        assert isinstance(group, GroupScene)
        task_status.started()
        while True:
            await operator.pause(0.3)
            leader = group.leader
            if leader is not None and leader.broker is not None and not group.healed:
                await self._change(group, operator, leader)

    async def _change(self, group: GroupScene, operator: Operator, leader: Node) -> None:
        """Request one change that is possible in the leader's configuration."""
        assert leader.broker is not None
        rng, configuration = group.rng, replica_of(leader.broker).core.configuration
        peers = {peer_of(node): replica_settings(node.config).peers[peer_of(node)] for node in group.nodes}
        strangers = [peer for peer in peers if not configuration.votes(peer)]
        if rng.random() < 0.4:
            action, peer = "transfer", rng.choice(sorted(configuration.voters))
        elif strangers:
            peer = rng.choice(strangers)
            action = rng.choice(("add", "add", "remove") if peer in configuration.learners else ("add", "learner"))
        elif len(configuration.voters) > group.voters_min:
            action, peer = "remove", rng.choice(sorted(configuration.voters))
        else:
            return
        fields = {"action": action, "peer": peer, "address": peers.get(peer, "")}
        group.note(f"{action} {peer}")
        answer = await operator.ask(group.asked.address, RequestCode.CHANGE_DLEDGER_GROUP, fields)
        self._changes += answer is not None and answer.code == ResponseCode.SUCCESS

    def counts(self) -> dict[str, int]:
        return {"group_changes": self._changes}
