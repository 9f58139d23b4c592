"""The base of all parts of the admin client: sends one request, and finds the brokers that a call is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ...message.json import loads
from ...message.units import MASTER_ID
from ...remoting.codes import RequestCode
from ...remoting.command import RemotingCommand
from ...world.network import Address
from ..arguments import check_text
from ..errors import EVERY_TOPIC, ClientError, InvalidArgument, NoRoute, NoRouteReason, Unreachable
from ..queue_calls import request
from ..route import BrokerRoute, TopicRoute, parse_broker
from ..session import Session
from .values import Cluster

ADMIN_GROUP = "TOOLS_CONSUMER"
QUERY_SECONDS = 18.0
ADMIN_SECONDS = 5.0
LATEST = -1
"""As a timestamp, the position behind the newest message."""


@attrs.define(eq=False)
class AdminCalls:
    """Sends an administrator's requests to servers."""

    _session: Session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._session.name_servers_text}>"

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask these name servers from now on; see `Producer.update_name_servers`."""
        self._session.update_name_servers(namesrv)

    async def cluster(self) -> Cluster:
        """All brokers that the name server knows."""
        answer = await self._session.ask_name_server(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        brokers = map(parse_broker, table_of(answer, "brokerAddrTable").values())
        return Cluster(tuple(sorted(brokers, key=lambda broker: (broker.cluster, broker.name))))

    async def _learn_route(self, topic: str) -> None:
        """Ask where a topic is now: after a failover the route that an earlier call has learned names a master that is gone."""
        await self._session.refresh_route(topic)

    async def _ask(
        self,
        address: Address,
        code: RequestCode,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        seconds: float = ADMIN_SECONDS,
    ) -> RemotingCommand:
        return await self._session.ask(address, request(code, fields, body), seconds)

    async def _ask_name_servers(self, code: RequestCode, fields: Mapping[str, Any]) -> list[tuple[Address, RemotingCommand]]:
        """Ask every name server; see `_ask_each`."""
        return await self._ask_each([(str(address), address) for address in self._session.name_servers], code, fields)

    async def _ask_each(
        self, servers: Sequence[tuple[str, Address]], code: RequestCode, fields: Mapping[str, Any]
    ) -> list[tuple[Address, RemotingCommand]]:
        """Ask one server after the other, each given by its name and its address; returns their answers.

        Raises:
            ClientError: one or more failed; the others were asked all the same, and a note says which.
        """
        answers: list[tuple[Address, RemotingCommand]] = []
        done: list[str] = []
        failed: dict[str, ClientError] = {}
        for name, address in servers:
            try:
                answers.append((address, await self._ask(address, code, fields)))
                done.append(name)
            except ClientError as error:
                failed[name] = error
        if failed:
            first = next(iter(failed.values()))
            if len(servers) > 1:
                first.add_note(f"Done by {', '.join(done) or 'none'}; not by {', '.join(failed)}.")
            raise first
        return answers

    async def _change(
        self, code: RequestCode, requests: Sequence[tuple[str, Address, Mapping[str, Any] | None, bytes]]
    ) -> list[RemotingCommand]:
        """Let one broker after the other make a change; each is given by its name, its address, fields and body.

        Returns: their answers.

        Raises:
            ClientError: one failed; a note says which have made the change, and which were not asked.
        """
        answers: list[RemotingCommand] = []
        for name, address, fields, body in requests:
            try:
                answers.append(await self._ask(address, code, fields, body))
            except ClientError as error:
                add_progress(error, [each[0] for each in requests], name)
                raise
        return answers

    async def _masters(self, cluster: str | None = None, broker: str | None = None) -> list[Address]:
        """The addresses that `_named_masters` finds; raises as `_named_masters` does."""
        return [address for _, address in await self._named_masters(cluster, broker)]

    async def _named_masters(
        self, cluster: str | None, broker: str | None, *, every: bool = False
    ) -> list[tuple[str, Address]]:
        """The masters of `broker`, `cluster` or all brokers, with names; one given by its address has that as its name.

        Args:
            cluster: the name of a cluster.
            broker: a broker name or `host:port`.
            every: whether they are to make a change, which a broker without a master would miss.

        Raises:
            InvalidArgument: the name server knows no such broker or cluster, or the address is malformed.
            NoRoute: the name server knows no broker at all.
            Unreachable: with `every`, a broker has no master.
        """
        for name, value in (("cluster", cluster), ("broker", broker)):
            if value is not None:
                check_text(name, value)
        if broker is not None and ":" in broker:
            try:
                return [(broker, Address.parse(broker))]
            except ValueError as error:
                raise InvalidArgument(f"broker: {error}") from error
        known = await self.cluster()
        if broker is not None:
            brokers = [each for each in known.brokers if each.name == broker]
        else:
            brokers = [each for each in known.brokers if cluster in (None, each.cluster)]
        found = [(each.name, each.addresses[MASTER_ID]) for each in brokers if MASTER_ID in each.addresses]
        if not found:
            if not known.brokers:
                raise NoRoute(EVERY_TOPIC, NoRouteReason.NO_BROKER)
            if broker is not None:
                raise InvalidArgument(
                    f"no master of a broker {broker!r}: known are {_listed(each.name for each in known.brokers)}"
                )
            if cluster is not None:
                raise InvalidArgument(
                    f"no master in a cluster {cluster!r}: known are {_listed(each.cluster for each in known.brokers)}"
                )
            raise NoRoute(EVERY_TOPIC, NoRouteReason.NO_MASTER_AT_ALL)
        if every:
            check_masters(brokers)
        return found


def body_of(answer: RemotingCommand) -> dict[str, Any]:
    """The JSON object in the body of an answer; an empty one if there is no body."""
    return loads(answer.body) if answer.body else {}


def table_of(answer: RemotingCommand, name: str) -> dict[str, Any]:
    """The object `name` of the body of an answer; an empty one if it is absent or null."""
    return body_of(answer).get(name) or {}


def check_masters(brokers: Iterable[BrokerRoute]) -> None:
    """Check that each broker has a master, before they make a change.

    Raises:
        Unreachable: one has none. Nothing was changed.
    """
    without = sorted(broker.name for broker in brokers if MASTER_ID not in broker.addresses)
    if without:
        raise Unreachable(", ".join(without), "no master, which has to make the change; nothing was changed")


def add_progress(error: ClientError, names: Sequence[str], failed: str, *, in_part: bool = False) -> None:
    """Add a note to the failure of a change that several brokers make one after the other: which have made it by then.

    Args:
        error: the failure.
        names: the brokers, in the order in which they are asked.
        failed: the one that failed.
        in_part: whether it had done a part of the change before.
    """
    at = names.index(failed)
    done, left = ", ".join(names[:at]), ", ".join(names[at + 1 :])
    if done or left:
        has = "may have the change" if in_part or error.may_have_been_stored else "was not changed"
        error.add_note(f"Changed on {done or 'no broker'}; {failed} {has}; not asked: {left or 'none'}.")


def masters_of(route: TopicRoute) -> list[Address]:
    """The masters of those brokers of a topic that have one.

    Raises:
        NoRoute: none of them has a master.
    """
    masters = [broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses]
    if not masters:
        raise NoRoute(route.topic, NoRouteReason.NO_MASTER)
    return masters


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
