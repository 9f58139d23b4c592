"""Users that are created, changed and deleted, and rights that are given and taken away."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Look

from ..scene import Node
from .operator import Changing, Operator
from .workload import LOOK_SECONDS

USERS = ("ux0", "ux1")
TOPIC = "T"


@attrs.define(eq=False)
class Access(Changing):
    """An acknowledged change of a user is kept, and a slave has all users and rights of its master in the end.

    Rights are compared at the end alone, because a deletion of their user deletes them, too.
    """

    name: ClassVar[str] = "access"
    pause_share: ClassVar[float] = 0.1
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.AUTH_CREATE_USER,
            RequestCode.AUTH_UPDATE_USER,
            RequestCode.AUTH_DELETE_USER,
            RequestCode.AUTH_CREATE_ACL,
            RequestCode.AUTH_UPDATE_ACL,
            RequestCode.AUTH_DELETE_ACL,
        }
    )
    _password: int = 0
    _looks: int = 0

    async def change(self, operator: Operator) -> None:
        rng, address = self.scene.rng, self.scene.asked.address
        user = rng.choice(USERS)
        code = rng.choice(sorted(self.codes))
        if code == RequestCode.AUTH_DELETE_USER:
            await operator.change({user: None}, address, code, {"username": user})
        elif code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER):
            self._password += 1
            password = str(self._password)
            await operator.change({user: password}, address, code, {"username": user}, {"password": password})
        else:
            resource = rng.choice(("Topic:T", "Topic:*", "Group:g"))
            entry = {"resource": resource, "actions": [rng.choice(("Pub", "Sub"))], "decision": "Allow"}
            fields = {"subject": f"User:{user}", "resource": resource}
            await operator.change({}, address, code, fields, {"policies": [{"entries": [entry]}]})

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
        for name in USERS:
            self._looks += 1
            user = broker.tables.access.users.get(name)
            value = user.password if user is not None else None
            self.scene.history.looks.append(Look(name, value, node.host, trio.current_time(), self.scene.epoch))

    def lacking(self) -> str:
        master = self.scene.serving
        for node in self.scene.slaves:
            if node.broker is not None and master is not None:
                mine, masters = node.broker.tables.access, master.tables.access
                if (mine.users, mine.acls) != (masters.users, masters.acls):
                    return f"{node.host} has the users and rights {mine.to_json()}, its master {masters.to_json()}"
        return ""

    def counts(self) -> dict[str, int]:
        return {"user_looks": self._looks}
