"""Configuration that is changed at run time: of the broker, of name servers, and the routes' write permission."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.message.json import dumps
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.java_properties import write_properties
from ledgermq.testing.history import Look
from ledgermq.world.network import Address

from ..scene import NAMESRV
from .operator import Changing, Operator
from .workload import LOOK_SECONDS

NAMESPACE, KEYS = "ns", ("k0", "k1")
WIPED_SHARE = 0.02
"""How long a broker's write permission is wiped at a time, at most, as a share of a life."""


@attrs.define(eq=False)
class Settings(Changing):
    """An acknowledged setting is kept, and changed settings stop no client for good."""

    name: ClassVar[str] = "settings"
    pause_share: ClassVar[float] = 0.15
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.UPDATE_NAMESRV_CONFIG,
            RequestCode.PUT_KV_CONFIG,
            RequestCode.DELETE_KV_CONFIG,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        }
    )
    _value: int = 0
    _looks: int = 0

    async def change(self, operator: Operator) -> None:
        scene, rng = self.scene, self.scene.rng
        master, kind = scene.master, rng.randrange(6)
        if kind == 0:
            entries = {
                "longPollingEnable": rng.choice(("true", "false")),
                "maxTransferCountOnMessageInMemory": str(rng.randint(1, 40)),
                "useServerSideResetOffset": rng.choice(("true", "false")),
            }
            await operator.ask_master(RequestCode.UPDATE_BROKER_CONFIG, body=write_properties(entries).encode())
        elif kind == 1:
            entries = {"scanNotActiveBrokerInterval": str(rng.choice((1000, 5000)))}
            await operator.ask_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, body=write_properties(entries).encode())
        elif kind == 2:
            await self._change_kv(operator)
        elif kind == 3:
            fields = {"brokerName": master.config.broker_name}
            await operator.ask_name_servers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields)
            await operator.pause(WIPED_SHARE)
            for process in scene.name_servers:
                await self._allow(operator, Address(process.host, NAMESRV.port), fields)
        elif kind == 4:
            config = master.config
            fields = {
                "clusterName": config.broker_cluster_name,
                "brokerName": config.broker_name,
                "brokerAddr": str(master.address),
            }
            await operator.ask_name_servers(RequestCode.BROKER_HEARTBEAT, fields)
            version = dumps({"counter": 1, "timestamp": 1, "stateVersion": 0})
            await operator.ask_name_servers(RequestCode.QUERY_DATA_VERSION, fields, version)
            for node in scene.nodes:  # any client may send a notice of another master
                notice = {"minBrokerId": 0, "brokerName": config.broker_name, "minBrokerAddr": node.address}
                await operator.ask(node.address, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        else:
            queues = [{"brokerName": master.config.broker_name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
            body = dumps({"queueDatas": queues})
            await operator.ask_name_servers(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "registered"}, body)

    async def _allow(self, operator: Operator, address: Address, fields: dict[str, str]) -> None:
        """Restore the write permission; repeat until it is answered with SUCCESS."""
        while True:
            answer = await operator.ask(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, fields)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                return
            await trio.sleep(1)

    async def _change_kv(self, operator: Operator) -> None:
        self._value += 1
        key, deletes = self.scene.rng.choice(KEYS), self.scene.rng.random() < 0.3
        for process in self.scene.name_servers:
            fields = {"namespace": NAMESPACE, "key": key, "value": str(self._value)}
            values = {f"{process.host} {key}": None if deletes else str(self._value)}
            code = RequestCode.DELETE_KV_CONFIG if deletes else RequestCode.PUT_KV_CONFIG
            await operator.change(values, Address(process.host, NAMESRV.port), code, fields)

    async def look_often(self) -> None:
        operator = Operator(self.scene)
        while True:
            await trio.sleep(LOOK_SECONDS)
            process, key = self.scene.rng.choice(self.scene.name_servers), self.scene.rng.choice(KEYS)
            fields = {"namespace": NAMESPACE, "key": key}
            began = trio.current_time()
            answer = await operator.ask(Address(process.host, NAMESRV.port), RequestCode.GET_KV_CONFIG, fields)
            known = answer is not None and answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
            if answer is not None and known:
                self._looks += 1
                value = answer.ext.get("value") if answer.code == ResponseCode.SUCCESS else None
                name = f"{process.host} {key}"
                self.scene.history.looks.append(Look(name, value, process.host, began, self.scene.epoch, trio.current_time()))

    def counts(self) -> dict[str, int]:
        return {"kv_looks": self._looks}
