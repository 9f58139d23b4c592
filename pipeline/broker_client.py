"""Requests routes, topics, bounds of queues and offsets by time from name servers and brokers, in plain threads.

A request that fails is repeated, at another server or later, until `failoverTimeoutMs` has passed. So a job waits for a broker
that fails over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from ..client.route import BrokerRoute, RouteTable, TopicRoute, parse_route
from ..message.errors import JsonError
from ..message.flags import PERM_READ, PULL_SUBSCRIPTION
from ..message.json import loads
from ..message.layout import span_of
from ..message.message import MessageQueue
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, wire_fields
from ..world.address import Address
from .catalog import Bounds
from .errors import BadOption, BrokerGone, TopicGone, Unavailable
from .link import Link, LinkLost, link_to
from .options import Pulling, ReadOptions, Servers
from .ranges import RECORD_BYTES, QueueRange, Task, plan_queues
from .waiting import Wait

SAMPLED_QUEUES_MAX, SAMPLED_MESSAGES = 32, 4
"""How many queues of a plan are asked for messages, and for how many each, to learn how large messages are."""
MEMBER_SECONDS = 3.0
"""How long other members of a broker are preferred to one that failed."""
NAME_SERVER_SECONDS = 30.0
"""How long a name server that failed is not asked if others answer. Brokers register with all of them as often as that."""
BUSY_CODES = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR))
"""Answers after which the same request may succeed a little later."""

ACCESS_REFUSED = "AclException"
"""Part of the remark with which Apache 4.9 refuses a request for lack of rights; the code is that of any failure."""

Answer = TypeVar("Answer")


def is_busy(answer: RemotingCommand) -> bool:
    """Return whether the same request may succeed a little later."""
    return answer.code in BUSY_CODES and ACCESS_REFUSED not in (answer.remark or "")


def request(code: RequestCode, fields: Mapping[str, Any]) -> RemotingCommand:
    """Create a request from Python values."""
    return RemotingCommand(code, wire_fields(fields))


def pull_request(
    pulling: Pulling, queue: MessageQueue, offset: int, count: int, expression: str = "*", bytes_max: int | None = None
) -> RemotingCommand:
    """Create a request for messages of a queue. It commits nothing, and a broker without messages answers at once."""
    return request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": pulling.group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "maxMsgNums": min(count, pulling.messages_max),
            "maxMsgBytes": bytes_max or pulling.bytes_max,
            "sysFlag": PULL_SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": expression,
            "subVersion": 0,
            "expressionType": "TAG",
            "bname": queue.broker_name,
        },
    )


@attrs.define(eq=False)
class BrokerClient:
    """Keeps routes, and finds a server that answers."""

    servers: Servers
    routes: RouteTable = attrs.field(factory=RouteTable)
    _avoided: dict[Address, float] = attrs.field(factory=dict[Address, float])
    """Servers that failed recently, and the time until which others are preferred."""
    _gone: set[str] = attrs.field(factory=set[str])
    """Brokers that no name server knew for `failoverTimeoutMs`. They are not waited for again until they come back."""

    def link(self, address: Address) -> Link:
        return link_to(address, self.servers)

    def ask_name_servers(self, command: Callable[[], RemotingCommand]) -> RemotingCommand:
        """Ask name servers in turn until one answers.

        Raises:
            Unavailable: no name server answered; the error names the addresses, the time and the attempts.
        """
        wait = Wait(self.servers.failover_seconds)
        attempts, reasons = 0, dict[str, str]()
        while True:
            for address in self.servers.namesrv:
                attempts += 1
                try:
                    return self.link(address).call(command(), self.servers.call_seconds)
                except LinkLost as error:
                    reasons[str(address)] = error.reason
            attempted = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            if not wait.goes_on(f"option 'nameServer': no name server has answered yet ({attempted})"):
                raise Unavailable(
                    f"option 'nameServer': no name server answered within {self.servers.failover_seconds:g} s "
                    f"('failoverTimeoutMs'), in {attempts} attempts ({attempted})"
                )

    def ask_all_name_servers(self, command: Callable[[], RemotingCommand]) -> list[RemotingCommand]:
        """Return the answers of all name servers that answer; raises as `ask_name_servers` if none does.

        Each knows the brokers that have registered with it. One that was started just now knows some of them only.
        """
        answers: list[RemotingCommand] = []
        for address in self._preferred(self.servers.namesrv):
            try:
                answers.append(self.link(address).call(command(), self.servers.call_seconds))
            except LinkLost:
                self.avoid(address, NAME_SERVER_SECONDS)
        return answers or [self.ask_name_servers(command)]

    def _preferred(self, addresses: Sequence[Address]) -> Sequence[Address]:
        now = time.monotonic()
        return [address for address in addresses if self._avoided.get(address, 0) <= now] or addresses

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, as all name servers together know it; None if no broker has the topic."""
        answers = self.ask_all_name_servers(lambda: request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
        routes = [
            parse_route(topic, self._body(answer, "the route of " + topic))
            for answer in answers
            if answer.code != ResponseCode.TOPIC_NOT_EXIST
        ]
        if not routes:
            self.routes.forget(topic)
            return None
        route = merged(routes)
        self.routes.update(route)
        return route

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        answer = self.ask_name_servers(lambda: request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}))
        return sorted(set(self._body(answer, "the list of topics").get("topicList") or ()))

    def _body(self, answer: RemotingCommand, what: str) -> dict[str, Any]:
        if answer.code != ResponseCode.SUCCESS:
            raise Unavailable(f"a name server of {self.servers} refused {what}: code {answer.code}, {answer.remark}")
        try:
            body: dict[str, Any] = loads(answer.body)
        except JsonError as error:
            raise Unavailable(f"a name server of {self.servers} answered {what} with something else: {error}") from error
        return body

    def brokers(self) -> set[str]:
        """Return the names of all brokers that have a live member."""
        answers = self.ask_all_name_servers(lambda: request(RequestCode.GET_BROKER_CLUSTER_INFO, {}))
        return {name for answer in answers for name in self._body(answer, "the list of brokers").get("brokerAddrTable") or ()}

    def is_gone(self, broker_name: str) -> bool:
        """Return whether name servers know brokers, but not this one. Name servers without any are wrong, or just starting."""
        known = self.brokers()
        return bool(known) and broker_name not in known

    def absent(self, brokers: Iterable[str]) -> set[str]:
        """Return those of some brokers that no name server knows until `failoverTimeoutMs` has passed."""
        wanted = set(brokers)
        wait = self._wait_for(*wanted)
        while absent := wanted - self.brokers() if wanted else set[str]():
            if not wait.goes_on(f"option 'nameServer': no name server of {self.servers} knows {', '.join(sorted(absent))} yet"):
                break
        self._gone = self._gone - wanted | absent
        return absent

    def _wait_for(self, *brokers: str) -> Wait:
        return Wait(0.0 if self._gone.issuperset(brokers) else self.servers.failover_seconds)

    def is_deleted(self, topic: str, broker_name: str) -> bool:
        """Return whether a live broker no longer has a topic. Topics of a broker that is down are not in the route either."""
        # The route is asked for again, because the broker may have come back between the first two answers.
        return not self._has(topic, broker_name) and broker_name in self.brokers() and not self._has(topic, broker_name)

    def _has(self, topic: str, broker_name: str) -> bool:
        route = self.route(topic)
        return route is not None and any(queue.broker_name == broker_name for queue in route.queues)

    def retry_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if there are live brokers and none has the topic.

        Raises:
            Unavailable: there was no live broker until `failoverTimeoutMs` had passed.
        """
        wait = Wait(self.servers.failover_seconds)
        while (route := self.route(topic)) is None and not self.brokers():
            if not wait.goes_on(f"option 'nameServer': the name servers {self.servers} know no broker yet"):
                raise Unavailable(
                    f"option 'nameServer': the name servers {self.servers} have known no broker for "
                    f"{self.servers.failover_seconds:g} s ('failoverTimeoutMs')"
                )
        return route

    def member(self, queue: MessageQueue, attempt: int = 0) -> Address | None:
        """Return a member that has a queue: the master, or another one while the master fails; None if none is known."""
        route = self.routes.routes.get(queue.topic)
        broker = next((each for each in route.brokers if each.name == queue.broker_name), None) if route is not None else None
        if broker is None or not broker.addresses:
            return None
        usable = self._preferred([broker.addresses[broker_id] for broker_id in sorted(broker.addresses)])
        return usable[attempt % len(usable)]

    def avoid(self, address: Address, seconds: float = MEMBER_SECONDS) -> None:
        """Prefer other servers for a while."""
        self._avoided[address] = time.monotonic() + seconds

    def retry(self, queue: MessageQueue, ask: Callable[[Link], Answer | None]) -> Answer:
        """Ask the members of a queue's broker in turn until one answers; a new route is fetched after each failure.

        Args:
            queue: the request goes to its broker.
            ask: returns None if the same request may succeed later; raises `LinkLost` if the member fails.

        Raises:
            TopicGone: the broker is live and does not have the topic.
            BrokerGone: no name server knew the broker until `failoverTimeoutMs` had passed.
            Unavailable: `failoverTimeoutMs` has passed.
        """
        wait = self._wait_for(queue.broker_name)
        reason = "no member of its broker is in the route"
        while True:
            if queue.topic not in self.routes.routes:
                self.route(queue.topic)
            address = self.member(queue)
            if address is not None:
                try:
                    found = ask(self.link(address))
                    if found is not None:
                        self._gone.discard(queue.broker_name)
                        return found
                    reason = f"{address} is busy"
                except LinkLost as error:
                    reason = str(error)
                    self.avoid(address)
            elif self.is_deleted(queue.topic, queue.broker_name):
                raise TopicGone(queue.topic, queue.broker_name)
            if not wait.goes_on(f"{queue}: no answer yet: {reason}"):
                if address is None and self.is_gone(queue.broker_name):
                    self._gone.add(queue.broker_name)
                    raise BrokerGone(queue, self.servers)
                raise Unavailable(
                    f"{queue}: no answer within {self.servers.failover_seconds:g} s ('failoverTimeoutMs'): {reason}"
                )
            self.routes.forget(queue.topic)


def merged(routes: Sequence[TopicRoute]) -> TopicRoute:
    """Return one route with all that several name servers know of a topic. Where they differ, the first one counts."""
    brokers: dict[str, BrokerRoute] = {}
    for broker in (broker for route in routes for broker in route.brokers):
        known = brokers.setdefault(broker.name, broker)
        brokers[broker.name] = attrs.evolve(known, addresses={**broker.addresses, **known.addresses})
    queues = {queue.broker_name: queue for route in reversed(routes) for queue in route.queues}
    order = next((route.order_configuration for route in routes if route.order_configuration), "")
    return TopicRoute(routes[0].topic, tuple(brokers.values()), tuple(queues.values()), order)


def offset_of(answer: RemotingCommand) -> int | None:
    """Return the offset in an answer; None if a later answer may have one.

    Raises:
        Unavailable: the broker refuses the request.
    """
    if answer.code == ResponseCode.SUCCESS:
        return int(answer.ext["offset"])
    if is_busy(answer):
        return None
    raise Unavailable(f"a broker refused a request for an offset: code {answer.code}, {answer.remark}")


@attrs.define(eq=False)
class BrokerCatalog:
    """The catalog of a cluster; satisfies `Catalog`."""

    client: BrokerClient
    pulling: Pulling = attrs.field(factory=Pulling)
    reports_gone: bool = False
    """Whether queues of a broker that no name server knows are left out, for readers that report them as a loss."""

    def topics(self) -> list[str]:
        return self.client.topics()

    def queues(self, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for topic in topics:
            route = self.client.retry_route(topic)
            found[topic] = [] if route is None else readable(route)
        return found

    def absent(self, brokers: Iterable[str]) -> set[str]:
        ordered = (route.order_configuration for route in self.client.routes.routes.values())
        named = {item.partition(":")[0] for text in ordered for item in text.split(";") if item}
        return self.client.absent({*brokers, *named})

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        wanted = list(queues)
        least = self._offsets(wanted, RequestCode.GET_MIN_OFFSET)
        most = self._offsets([queue for queue in wanted if queue in least], RequestCode.GET_MAX_OFFSET)
        return {queue: Bounds(min(least[queue], most[queue]), most[queue]) for queue in most}

    def ends(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return only the end of each queue, with half the requests of `bounds`; queues that do not exist are left out."""
        return self._offsets(list(queues), RequestCode.GET_MAX_OFFSET)

    def _offsets(self, queues: list[MessageQueue], code: RequestCode) -> dict[MessageQueue, int]:
        """Ask for one offset of each queue; the requests to one broker are sent together."""
        found: dict[MessageQueue, int] = {}
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        for listed in by_broker.values():
            own = listed
            while own:
                try:
                    found |= self.client.retry(own[0], lambda link, own=own: self._ask_all(link, own, code))  # type: ignore[misc]
                    break
                except TopicGone as gone:
                    own = [queue for queue in own if queue.topic != gone.topic]
                except BrokerGone:
                    if not self.reports_gone:
                        raise
                    break
        return found

    def _ask_all(self, link: Link, queues: list[MessageQueue], code: RequestCode) -> dict[MessageQueue, int] | None:
        seconds = self.client.servers.call_seconds
        opaques = [
            link.submit(request(code, {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker_name}), seconds)
            for queue in queues
        ]
        answers = [link.answer(opaque, seconds) for opaque in opaques]
        found: dict[MessageQueue, int] = {}
        for queue, answer in zip(queues, answers, strict=True):
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                if self.client.is_deleted(queue.topic, queue.broker_name):
                    continue
                return None  # a slave copies new topics late
            offset = offset_of(answer)
            if offset is None:
                return None
            found[queue] = offset
        return found

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, bounds: Bounds) -> int:
        if bounds.max <= bounds.min:
            return bounds.max
        fields = {"topic": queue.topic, "queueId": queue.queue_id, "timestamp": timestamp_ms, "bname": queue.broker_name}
        command = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        seconds = self.client.servers.call_seconds
        hint = self.client.retry(queue, lambda link: offset_of(link.call(request(command, fields), seconds)))
        # A broker may answer with any message of that millisecond, and with the last one if none is new enough.
        low, high = bounds.min, bounds.max
        hint = min(max(hint, low), high)
        if (hint == low or self._stored(queue, hint - 1) < timestamp_ms) and (
            hint == high or self._stored(queue, hint) >= timestamp_ms
        ):
            return hint
        while low < high:
            middle = (low + high) // 2
            if self._stored(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored(self, queue: MessageQueue, offset: int) -> int:
        """Return the store time of a message in ms; 0 if it no longer exists."""
        seconds = self.client.servers.call_seconds

        def ask(link: Link) -> int | None:
            answer = link.call(pull_request(self.pulling, queue, offset, 1, bytes_max=1), seconds)
            check_group(answer, self.pulling)
            if answer.code == ResponseCode.SUCCESS:
                span = span_of(answer.body, 0, len(answer.body))
                return 0 if span is None else span.store_timestamp
            return 0 if answer.code == ResponseCode.PULL_OFFSET_MOVED else None

        return self.client.retry(queue, ask)

    def plan(self, ranges: Sequence[QueueRange], options: ReadOptions) -> list[Task]:
        # Sizes are not looked up: a batch that is planned again, when messages have expired, must be divided in the same way.
        return plan_queues(ranges, options.split)

    def range_bytes(self, ranges: Sequence[QueueRange]) -> int:
        return sum(each.count for each in ranges) * self._record_bytes(ranges)

    def _record_bytes(self, ranges: Sequence[QueueRange]) -> int:
        """Return about how many bytes a message of ranges has, by a few of them that are fetched."""
        chosen = ranges[:: -(-len(ranges) // SAMPLED_QUEUES_MAX)] if ranges else ()
        sizes: list[tuple[int, int]] = []
        for each in chosen:
            count = min(SAMPLED_MESSAGES, each.count)
            try:
                found = [self._size_of(each.queue, each.start + each.count * at // count) for at in range(count)]
            except LinkLost:  # the read itself will wait for the broker
                break
            known = [size for size in found if size]
            if known:
                sizes.append((each.count, each.count * sum(known) // len(known)))
        counted = sum(count for count, _ in sizes)
        return max(sum(size for _, size in sizes) // counted, 1) if counted else RECORD_BYTES

    def _size_of(self, queue: MessageQueue, offset: int) -> int:
        """Return the size of one record; 0 if its broker does not have it now.

        Raises:
            LinkLost: the broker does not answer.
        """
        address = self.client.member(queue)
        if address is None:
            return 0
        command = pull_request(self.pulling, queue, offset, 1, bytes_max=1)
        answer = self.client.link(address).call(command, self.client.servers.call_seconds)
        span = span_of(answer.body, 0, len(answer.body)) if answer.code == ResponseCode.SUCCESS else None
        return 0 if span is None else span.size

    def close(self) -> None:
        """Do nothing: the process keeps its connections."""


def readable(route: TopicRoute) -> list[MessageQueue]:
    """Return the queues that may be read. Those of a broker without an address are among them: they are waited for."""
    return sorted(
        MessageQueue(route.topic, queue.broker_name, queue_id)
        for queue in route.queues
        if queue.perm & PERM_READ
        for queue_id in range(queue.read_queues)
    )


def check_group(answer: RemotingCommand, pulling: Pulling) -> None:
    """Check that a broker lets our group read.

    Raises:
        BadOption, Unavailable: the broker refuses.
    """
    if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        raise BadOption("group", pulling.group, f"the broker does not know this consumer group: {answer.remark}")
    if answer.code == ResponseCode.NO_PERMISSION:
        raise Unavailable(f"the broker does not let the group {pulling.group!r} read: {answer.remark}")
