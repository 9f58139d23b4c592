"""Topics: their settings, their queues, and the groups that consume them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import trio

from ...message.flags import PERM_READ_WRITE
from ...message.json import message_queue_of
from ...message.message import MessageQueue
from ...remoting.codes import RequestCode
from ...world.network import Address
from ..arguments import LONG_MAX, check_integer, check_queue, check_topic
from ..errors import NoAnswer, NoRoute, NoRouteReason, NotSupported, TopicNotExist, Unreachable
from ..queue_calls import max_offset, min_offset, offset_at, request
from ..route import QueueRoute, TopicRoute, parse_route
from .calls import ADMIN_SECONDS, AdminCalls, body_of, masters_of, table_of
from .errors import MessagesWouldBeHidden, NotInRoutes, TopicExists
from .topic_settings import QUEUES, TopicChange, TopicSettings, hidden_queues
from .values import QueueRange

ROUTE_CHECK_SECONDS = 0.02
"""The interval in seconds at which a name server is asked whether it has a change yet."""


@attrs.define(eq=False)
class TopicAdmin(AdminCalls):
    """The part of the admin client that concerns topics."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, TopicSettings]:
        """Create a topic on one broker, on every master of `cluster`, or on every master if neither is given.

        On return every name server that answers knows the topic. A master that has it with these settings is left as it is.

        Args:
            topic: the name of the topic.
            queues: how many queues each broker has for reading and for writing.
            read_queues: how many of them can be read, if not `queues`.
            write_queues: how many of them can be written, if not `queues`.
            perm: 6 allows reading and writing, 4 only reading, 2 only writing.
            order: whether the topic is marked as ordered.
            attributes: RocketMQ 5 topic attributes, such as `message.type`.
            cluster: the name of a cluster.
            broker: a broker name or `host:port`.

        Returns: the settings by broker.

        Raises:
            TopicExists: a broker has the topic with other settings. Nothing was changed.
            Unreachable: a broker has no master, or it cannot be reached; in the first case nothing was changed.
            NotInRoutes: the topic was created, but a name server does not know it yet.
        """
        check_topic(topic)
        change = TopicChange(
            queues=queues, read_queues=read_queues, write_queues=write_queues, perm=perm, order=order, attributes=attributes
        )
        wanted = change.applied(TopicSettings())
        missing: list[tuple[str, Address]] = []
        masters = await self._named_masters(cluster, broker, every=True)
        for name, address in masters:
            there = await self._settings(topic, address)
            if there is None:
                missing.append((name, address))
            elif there != wanted:
                raise TopicExists(topic, name, there)
        requests = [(name, address, wanted.fields(topic), b"") for name, address in missing]
        await self._change(RequestCode.UPDATE_AND_CREATE_TOPIC, requests)
        settings = {name: wanted for name, _ in masters}
        await self._until_routed(topic, settings)
        return settings

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        force: bool = False,
    ) -> dict[str, TopicSettings]:
        """Change the given settings of a topic on every master that has it, and leave all others as they are.

        On return every name server that answers knows the change. The arguments are those of `create_topic`; `force` changes
        the number of queues although messages in the others cannot be read any more.

        Returns: the settings by broker.

        Raises:
            NoRoute: no master has the topic.
            Unreachable: a broker has no master, or it cannot be reached; in the first case nothing was changed.
            MessagesWouldBeHidden: queues that hold messages could not be read any more. Nothing was changed.
            NotInRoutes: the topic was changed, but a name server does not know it yet.
        """
        check_topic(topic)
        change = TopicChange(
            queues=queues, read_queues=read_queues, write_queues=write_queues, perm=perm, order=order, attributes=attributes
        )
        before: dict[str, tuple[Address, TopicSettings]] = {}
        for name, address in await self._named_masters(cluster, broker, every=True):
            if (there := await self._settings(topic, address)) is not None:
                before[name] = address, there
        if not before:
            raise NoRoute(topic, NoRouteReason.TOPIC_UNKNOWN)
        after = {name: change.applied(there) for name, (_, there) in before.items()}
        hidden: dict[MessageQueue, int] = {}
        for name, (address, there) in before.items():
            if after[name].read_queues < there.read_queues and not force:
                hidden |= hidden_queues((await self._ranges(topic, address)).items(), there, after[name])
        if hidden:
            raise MessagesWouldBeHidden(topic, hidden)
        changed = [(name, address) for name, (address, there) in before.items() if after[name] != there]
        requests = [(name, address, after[name].fields(topic), b"") for name, address in changed]
        await self._change(RequestCode.UPDATE_AND_CREATE_TOPIC, requests)
        await self._until_routed(topic, after)
        return after

    async def topic_settings(
        self, topic: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicSettings]:
        """The settings of a topic on each master that has it, by broker."""
        check_topic(topic)
        found = {name: await self._settings(topic, address) for name, address in await self._named_masters(cluster, broker)}
        return {name: settings for name, settings in found.items() if settings is not None}

    async def _settings(self, topic: str, address: Address) -> TopicSettings | None:
        try:
            answer = await self._ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True})
            return TopicSettings.from_json(body_of(answer))
        except TopicNotExist:
            return None
        except NotSupported:  # the broker has a version before 5
            found = table_of(await self._ask(address, RequestCode.GET_ALL_TOPIC_CONFIG), "topicConfigTable").get(topic)
            return None if found is None else TopicSettings.from_json(found)

    async def _until_routed(self, topic: str, settings: Mapping[str, TopicSettings]) -> None:
        """Wait until every name server that answers has these settings; until then clients use the old ones."""
        wanted = {
            QueueRoute(name, each.read_queues, each.write_queues, each.perm)
            for name, each in settings.items()
            if ":" not in name  # a broker given by its address may be registered under another one
        }
        for address in self._session.name_servers:
            routed: set[QueueRoute] | None = None
            with trio.move_on_after(ADMIN_SECONDS), suppress(Unreachable, NoAnswer):
                while not wanted <= (routed := await self._queues_at(address, topic)):  # noqa: ASYNC110 - a server is asked
                    await trio.sleep(ROUTE_CHECK_SECONDS)
            if routed is not None and not _are_routed(wanted, routed):
                raise NotInRoutes(topic, str(address), ADMIN_SECONDS)

    async def _queues_at(self, name_server: Address, topic: str) -> set[QueueRoute]:
        try:
            answer = await self._ask(name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return set(parse_route(topic, body_of(answer)).queues)
        except TopicNotExist:
            return set()

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, on every broker that has it and on the name servers.

        As with RocketMQ's tools, it is no error that none has it: a deletion that failed half-way can be repeated.

        Raises:
            Unreachable: a broker has no master, when nothing was changed, or a broker or a name server cannot be reached.
        """
        check_topic(topic)
        masters = await self._named_masters(cluster, None, every=True)
        requests = [(name, address, {"topic": topic}, b"") for name, address in masters]
        await self._change(RequestCode.DELETE_TOPIC_IN_BROKER, requests)
        await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, "clusterName": cluster})

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """Names of all topics, system and retry topics too, sorted."""
        if cluster is None:
            command = request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            command = request(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        body = body_of(await self._session.ask_name_server(command))
        return sorted(set(body.get("topicList") or ()))

    async def topic_route(self, topic: str) -> TopicRoute:
        """The route of a topic: which brokers have its queues.

        Raises:
            NoRoute: the topic is unknown, or no name server answers.
        """
        check_topic(topic)
        return await self._session.refresh_route(topic)

    async def topic_stats(self, topic: str, *, broker: str | None = None) -> dict[MessageQueue, QueueRange]:
        """The offsets of each queue of a topic, as its masters, or the given broker alone, report them."""
        stats: dict[MessageQueue, QueueRange] = {}
        for address in await self._having(topic, broker):
            stats |= await self._ranges(topic, address)
        return dict(sorted(stats.items()))

    async def _ranges(self, topic: str, address: Address) -> dict[MessageQueue, QueueRange]:
        answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        return {
            message_queue_of(key): QueueRange(int(item["minOffset"]), int(item["maxOffset"]), int(item["lastUpdateTimestamp"]))
            for key, item in table_of(answer, "offsetTable").items()
        }

    async def topic_config(self, topic: str, broker: str) -> dict[str, Any]:
        """The topic's configuration on one broker (RocketMQ `TopicConfig`)."""
        check_topic(topic)
        (address,) = await self._masters(None, broker)
        return body_of(await self._ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True}))

    async def _having(self, topic: str, broker: str | None) -> list[Address]:
        check_topic(topic)
        return masters_of(await self.topic_route(topic)) if broker is None else await self._masters(None, broker)

    async def topic_groups(self, topic: str, *, broker: str | None = None) -> list[str]:
        """The groups that consume a topic or have consumed it, at its masters or at the given broker."""
        groups: set[str] = set()
        for address in await self._having(topic, broker):
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            groups.update(body_of(answer).get("groupList") or ())
        return sorted(groups)

    async def queue_range(self, queue: MessageQueue) -> tuple[int, int]:
        """The smallest offset of a queue and the one that its next message will get."""
        check_queue("queue", queue)
        await self._learn_route(queue.topic)
        return await min_offset(self._session, queue), await max_offset(self._session, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue stored at `timestamp_ms` or later."""
        check_queue("queue", queue)
        check_integer("timestamp_ms", timestamp_ms, 0, LONG_MAX)
        await self._learn_route(queue.topic)
        return await offset_at(self._session, queue, timestamp_ms)


def _are_routed(wanted: Iterable[QueueRoute], routed: Iterable[QueueRoute]) -> bool:
    """Whether routes have these queues; those of a broker that is drained have fewer permissions than the topic."""
    at = {queue.broker_name: queue for queue in routed}
    return all(
        (queue := at.get(one.broker_name)) is not None and queue == attrs.evolve(one, perm=one.perm & queue.perm)
        for one in wanted
    )
