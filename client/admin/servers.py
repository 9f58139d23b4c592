"""Brokers and name servers: their configuration and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ...remoting.codes import RequestCode
from ...remoting.java_properties import read_properties, write_properties
from ..arguments import check_properties
from ..errors import NotFound
from ..queue_calls import integer_of, request
from .calls import AdminCalls, body_of, table_of

CHANGE_SECONDS = 65.0
"""Time limit for a change of a DLedger group, in seconds; it is long because a new voter catches up first."""


@attrs.define(eq=False)
class ServerAdmin(AdminCalls):
    """The part of the admin client that concerns servers."""

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The configuration of the broker at `broker`: a broker name, which means its master, or `host:port`."""
        (address,) = await self._masters(None, broker)
        return read_properties((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body.decode())

    async def update_broker_config(self, broker: str, entries: Mapping[str, str]) -> None:
        """Change configuration keys of a running broker."""
        check_properties(entries, "entries")
        (address,) = await self._masters(None, broker)
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=write_properties(entries).encode())

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """The current state of a broker as it reports it (RocketMQ `brokerStatus`)."""
        (address,) = await self._masters(None, broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(table_of(answer, "table").items()))

    async def ha_status(self, broker: str) -> dict[str, Any]:
        """The state of replication as a master or slave reports it (RocketMQ `haStatus`)."""
        (address,) = await self._masters(None, broker)
        return body_of(await self._ask(address, RequestCode.GET_BROKER_HA_STATUS))

    async def change_dledger_group(self, broker: str, action: str, peer: str, address: str = "") -> None:
        """Transfer leadership of a DLedger group to a node, or change the group's members; returns when that is done.

        Args:
            broker: the address of the group's leader.
            action: `transfer`, `add`, `learner` or `remove`.
            peer: the id of the node, such as `n3`.
            address: the address at which the node listens for its peers; needed for `add` and `learner`.

        Raises:
            ClientError: the group refuses the change, or the broker does not lead a group; the text gives the reason.
        """
        (target,) = await self._masters(None, broker)
        fields = {"action": action, "peer": peer, "address": address}
        await self._ask(target, RequestCode.CHANGE_DLEDGER_GROUP, fields, seconds=CHANGE_SECONDS)

    async def set_writable(self, broker_name: str, *, writable: bool) -> int:
        """Remove or restore the write permission of all topics of a broker in the routes; returns how many topics changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        field = "addTopicCount" if writable else "wipeTopicCount"
        counts = [
            integer_of(answer, field, address)
            for address, answer in await self._ask_name_servers(code, {"brokerName": broker_name})
        ]
        return max(counts)

    async def name_server_config(self) -> dict[str, str]:
        """The configuration of the name server that answers first."""
        answer = await self._session.ask_name_server(request(RequestCode.GET_NAMESRV_CONFIG))
        return read_properties(answer.body.decode())

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store an entry in the KV configuration of every name server."""
        await self._ask_name_servers(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Read an entry of the KV configuration; None if there is none."""
        command = request(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        try:
            return (await self._session.ask_name_server(command)).ext.get("value")
        except NotFound:
            return None

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete an entry of the KV configuration of every name server."""
        await self._ask_name_servers(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})
