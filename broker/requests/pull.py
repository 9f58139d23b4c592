"""Pulls: requests 11 and 361, their checks, their answers and how they wait (RocketMQ PullMessageProcessor).

An answer's body consists of slices of the log, which are joined once and not decoded. A pull that finds nothing new is held
until a matching message arrives or its deadline passes. It is then answered with whatever a second read returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial

import attrs
import trio

from ...message.flags import PERM_READ, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand, Wire, answer_template, encode_frame, frame_start
from ...remoting.dispatcher import AnswerPolicy, Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...remoting.signature import ACCESS_KEY
from ...store.derived.dispatch import Derivable
from ...store.message_store import MessageStore
from ...store.read_side import GetResult
from ...store.statuses import GetStatus
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.logs import fault_of, trace_of
from ..access.positions import ReadCheck
from ..live_config import LiveConfig
from ..role import LiveRole, Role
from ..stats import Stats
from ..subscription import BadExpression, Subscription
from ..tables.clients import Consumers
from ..tables.commits import Commits
from ..tables.groups import GroupConfig, GroupTable
from ..tables.offsets import ConsumerOffsets
from ..tables.topics import TopicTable
from .hold import HeldPull, HeldPulls, Newest, Queue, Taken, common_deadline

log = get_logger(__name__)

MESSAGES_MAX = 1024
"""The most messages in one answer, even if the pull asks for more."""
WOKEN_PER_TURN_MAX = 64
"""The most held pulls answered in one turn of the event loop; the others are answered in later turns. A busy queue may have
thousands of broadcasting readers."""
VISITED_PER_TURN_MAX = 2000
"""The most held pulls that are looked at in one turn of the event loop to find those to be answered."""
SUSPEND_SECONDS_MAX = 120.0
"""The longest time for which a pull is held, whatever the client asks for."""
_JAVA_INT_MAX = 0x7FFFFFFF

_NOTHING_THERE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""The codes of answers to pulls at the end of a queue and beyond it."""
_HEADER = answer_template(b'"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d","suggestWhichBrokerId":"%d"', remark=True)

_REMARKS = {status: status.name.encode() for status in GetStatus}
_REMARKS[GetStatus.MESSAGE_DAMAGED] = (
    b"MESSAGE_DAMAGED: the next message is damaged on the disk of this broker, and was not sent"
)

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.MESSAGE_DAMAGED: ResponseCode.SYSTEM_ERROR,
}


def code_of(status: GetStatus, offset: int) -> ResponseCode:
    """The answer's code for the status of a read at `offset`."""
    if offset != 0 and status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED
    return _CODES[status]


@attrs.define(eq=False)
class Pull:
    """A pull that has passed its checks; a held pull keeps only these fields."""

    connection: ServerConnection
    opaque: int
    wire: Wire
    is_oneway: bool
    group: GroupConfig
    topic: str
    queue_id: int
    offset: int
    messages_max: int
    bytes_max: int
    codes: frozenset[int] | None
    user: str
    """In whose name it came; empty if it was not signed."""
    access_version: object
    """The version of the users and rights by which it was let in; None without access control."""


@attrs.define(eq=False, kw_only=True, repr=False)
class PullService:
    """Answers pulls of one broker."""

    config: LiveConfig
    clock: Clock
    store: MessageStore
    role: LiveRole
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    commits: Commits
    consumers: Consumers
    stats: Stats
    is_following: Callable[[], bool]
    """Whether this broker is connected to the master that it follows."""
    access: ReadCheck | None
    policy: AnswerPolicy | None
    """Which nodes take commits; None if all do, where the commits in pulls count on all but replicas."""
    leads: Callable[[], Awaitable[bool]] | None = None
    """Asks the DLedger group whether this broker leads; None in the classic mode."""
    holds: HeldPulls[Pull] = attrs.field(factory=HeldPulls[Pull])
    _dispatcher: Dispatcher = attrs.field(init=False)
    _woken: deque[Taken[Pull]] = attrs.field(factory=deque["Taken[Pull]"])
    """Held pulls that are to be answered and may be too many for one turn; each iterator has one turn after the other."""
    _scanned: dict[Queue, Newest] = attrs.field(factory=dict[Queue, Newest])
    """The queues whose held pulls are being compared with new messages, or are going to be, and what is new there and was not
    compared yet. One iterator among `_woken` belongs to each."""
    _ended: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    """The topics that were deleted, each with an empty group, and the topics and groups that were reset: their held pulls are
    to be answered."""
    _running: set[str] = attrs.field(factory=set[str])
    """Which of `_overdue` and `_released` are among `_woken`."""
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers, and the callbacks for arrivals, changed topics and closed connections."""
        self._dispatcher = dispatcher
        dispatcher.register(RequestCode.PULL_MESSAGE, self.handle)
        dispatcher.register(RequestCode.LITE_PULL_MESSAGE, self.handle)
        dispatcher.on_close.append(self.connection_closed)
        self.store.dispatcher.on_arrival.append(self.arrived)
        self.topics.on_change.append(self.topics_changed)

    def handle(self, connection: ServerConnection, request: RemotingCommand) -> None:
        """Check a pull, commit the offset that it carries, then answer it or hold it.

        Raises:
            RequestRefused: a check failed, and the code is that of the first one; or too many pulls are held.
        """
        config = self.config.now
        sys_flag = request.integer("sysFlag")
        pull = self._checked(connection, request, sys_flag)
        if sys_flag & PULL_COMMIT_OFFSET and self._takes_commits and not self._must_follow_reset(pull):
            self.commits.commit(pull.group.group_name, pull.topic, pull.queue_id, request.integer("commitOffset"))
        result = self._read(pull)
        code = code_of(result.status, pull.offset)
        at_end = code in _NOTHING_THERE or result.next_offset >= result.max_offset
        if at_end and not sys_flag & PULL_SUSPEND and self.store.dispatcher.behind_bytes:
            # This pull does not wait, and may ask for a message that was just acknowledged. A client that reads up to the end
            # that the answer names would miss it too.
            self.store.catch_up()
            result = self._read(pull)
            code = code_of(result.status, pull.offset)
        beyond_end = code is ResponseCode.PULL_OFFSET_MOVED and pull.offset > result.max_offset
        if beyond_end and self.leads is not None and self.role.takes_puts:
            self._dispatcher.check_room(connection, request)
            self._dispatcher.start_counted(connection, request, self._answer_if_leader, pull, self.leads)
            return
        may_wait = code is ResponseCode.PULL_NOT_FOUND or (
            code is ResponseCode.PULL_OFFSET_MOVED and self._is_alone(pull, result)
        )
        if not may_wait or not sys_flag & PULL_SUSPEND:
            self._answer(pull, result, code)
            return
        suspend_ms = request.integer("suspendTimeoutMillis") if config.long_polling_enable else config.short_polling_time_mills
        deadline = common_deadline(self.clock.monotonic(), min(suspend_ms / 1000, SUSPEND_SECONDS_MAX))
        held = HeldPull(pull.topic, pull.queue_id, pull.offset, pull.codes, deadline, connection, pull)
        if not self.holds.hold(held):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"[OVERLOAD] {len(self.holds)} pulls are held already; this one was not taken"
            )

    def _checked(self, connection: ServerConnection, request: RemotingCommand, sys_flag: int) -> Pull:
        if not self.config.now.broker_permission & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the broker {self.config.now.broker_name} may not be read")
        group_name, topic_name = request.text("consumerGroup"), request.text("topic")
        group = self.groups.find(group_name)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the consumer group {group_name!r} does not exist; create it first"
            )
        if not group.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the consumer group {group_name} may not consume")
        topic = self.topics.topics.get(topic_name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic_name!r} does not exist; create it first")
        if not topic.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic {topic_name} may not be read")
        if self.groups.is_forbidden(group_name, topic_name):
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group {group_name} may not read the topic {topic_name}")
        queue_id = request.integer("queueId")
        if not 0 <= queue_id < topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not one of the {topic.read_queue_nums} read queues of {topic_name}",
            )
        if sys_flag & PULL_SUBSCRIPTION:
            codes = self._codes_of_request(request, topic_name)
        else:
            codes = self._codes_of_heartbeats(group, topic_name, request.integer("subVersion", 0))
        return Pull(
            connection,
            request.opaque,
            request.wire,
            request.is_oneway,
            group,
            topic_name,
            queue_id,
            request.integer("queueOffset"),
            min(max(request.integer("maxMsgNums"), 1), MESSAGES_MAX),
            max(request.integer("maxMsgBytes", _JAVA_INT_MAX), 100),
            codes,
            request.ext.get(ACCESS_KEY, ""),
            None if self.access is None else self.access.version,
        )

    def _codes_of_request(self, request: RemotingCommand, topic: str) -> frozenset[int] | None:
        try:
            subscription = Subscription.parse(topic, request.ext.get("subscription"), 0, request.ext.get("expressionType"))
        except BadExpression as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        if not subscription.is_tag:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, expression_refusal(subscription))
        return subscription.codes

    def _codes_of_heartbeats(self, group: GroupConfig, topic: str, version: int) -> frozenset[int] | None:
        living = self.consumers.groups.get(group.group_name)
        if living is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"no consumer of the group {group.group_name} has sent a heartbeat"
            )
        if living.is_broadcasting and not group.consume_broadcast_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the group {group.group_name} may not consume by broadcast")
        subscription = living.subscriptions.get(topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the group {group.group_name} has not subscribed to {topic}"
            )
        if subscription.version < version:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of {group.group_name} to {topic} is newer than its last heartbeat",
            )
        if not subscription.is_tag:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, expression_refusal(subscription))
        return subscription.codes

    def _read(self, pull: Pull) -> GetResult:
        if self._must_follow_reset(pull) and (moved := self._reset_of(pull)) is not None:
            return moved
        return self.store.get(
            pull.topic, pull.queue_id, pull.offset, pull.messages_max, tags=pull.codes, max_bytes=pull.bytes_max
        )

    async def _answer_if_leader(
        self, _connection: ServerConnection, _request: RemotingCommand, pull: Pull, leads: Callable[[], Awaitable[bool]]
    ) -> None:
        """Answer a pull from beyond the end once the group has confirmed that this broker leads.

        A leader that was deposed while it hung has an older end, from which the client would read everything again.
        """
        self._look_again(pull, may_correct=await leads())

    @property
    def _takes_commits(self) -> bool:
        """Whether the commit in a pull counts.

        A node that is becoming master of an elected group may lose its election. As a follower it would keep the commit, and
        undo a later reset with it when it leads.
        """
        return self.role.takes_puts if self.policy is not None else not self.role.is_replica

    def _is_alone(self, pull: Pull, result: GetResult) -> bool:
        """Whether a broker that nobody else can answer for is asked for an offset beyond its end, which another has given out.

        A slave with a master answers that the client should retry at once; here RocketMQ's clients would retry without end.
        """
        if pull.offset <= result.max_offset:
            return False
        return self._is_read_only or (self._may_be_behind and not self.is_following())

    @property
    def _is_read_only(self) -> bool:
        """Whether this broker may become master, and may not have derived all that the last one has shown to consumers."""
        return self.role.state.role is Role.READ_ONLY

    @property
    def _may_be_behind(self) -> bool:
        """Whether this is a replica that leaves the check of offsets to its master, because it may be behind."""
        return self.role.is_replica and not self.config.now.offset_check_in_slave

    def _must_follow_reset(self, pull: Pull) -> bool:
        resets = self.offsets.resets
        return bool(resets) and resets.must_follow(pull.group.group_name, pull.topic, pull.queue_id, pull.connection)

    def _reset_of(self, pull: Pull) -> GetResult | None:
        """The result of a pull whose client must continue at the group's offset after a reset, and does not pull there."""
        offset = self.offsets.query(pull.group.group_name, pull.topic, pull.queue_id)
        if offset is None or offset == pull.offset:
            now = self.clock.monotonic()
            self.offsets.resets.follow(pull.group.group_name, pull.topic, pull.queue_id, pull.connection, now)
            return None
        store = self.store
        low, high = store.min_offset(pull.topic, pull.queue_id), store.max_offset(pull.topic, pull.queue_id)
        return GetResult(GetStatus.OFFSET_RESET, offset, low, high)

    def group_reset(self, group: str, topic: str) -> None:
        """Answer the held pulls of a group that was just reset."""
        self._release(((topic, group),))

    def _answer(self, pull: Pull, result: GetResult, code: ResponseCode) -> None:
        group, config = pull.group, self.config.now
        broker_id = 0
        if config.slave_read_enable:
            broker_id = group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id
        if code is ResponseCode.SUCCESS:
            self.stats.group_get(
                group.group_name, pull.topic, pull.queue_id, len(result.slices), result.size, result.next_offset
            )
        else:
            self.stats.get_missed()
            if code is ResponseCode.PULL_OFFSET_MOVED:
                if self._is_read_only and pull.offset > result.max_offset:
                    result = attrs.evolve(result, next_offset=pull.offset)
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
                elif self._may_be_behind:
                    code, broker_id = ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id
                log.debug(
                    "pull_offset_moved",
                    group=group.group_name,
                    topic=pull.topic,
                    queue_id=pull.queue_id,
                    asked=pull.offset,
                    next_offset=result.next_offset,
                )
        if not pull.is_oneway:
            pull.connection.push(encode_answer(pull, result, code, broker_id))

    def connection_closed(self, connection: ServerConnection) -> None:
        self.holds.drop(connection)

    def arrived(self, records: list[Derivable]) -> None:
        """Wake the held pulls that match new messages: at once those of a queue on which few wait."""
        holds, budget = self.holds, WOKEN_PER_TURN_MAX
        for queue, newest in holds.arrived((record[0], record[1], record[2] + 1, record[5]) for record in records).items():
            budget -= holds.waiting(queue)
            if budget >= 0:
                self._answer_some(holds.matching(queue, newest))
            elif queue in self._scanned:
                meanwhile = self._scanned[queue]
                meanwhile.update((code, max(end, meanwhile.get(code, 0))) for code, end in newest.items())
            else:
                self._scanned[queue] = newest
                self._wake_later(self._scan(queue))

    def _scan(self, queue: Queue) -> Taken[Pull]:
        """Take the held pulls of a queue that match its new messages, those that come meanwhile included."""
        while newest := self._scanned[queue]:
            self._scanned[queue] = {}
            yield from self.holds.matching(queue, newest)
        del self._scanned[queue]

    def sweep(self, now: float) -> None:
        """Answer the held pulls whose deadline has passed, and forget resets that were followed long ago."""
        self.offsets.resets.expire(now)
        self._wake_once("overdue", lambda: self.holds.due(now))

    def topics_changed(self, topics: list[str]) -> None:
        """Answer the held pulls of deleted topics; the next pull of each client is refused."""
        self._release((topic, "") for topic in topics if topic not in self.topics.topics)

    def _release(self, ended: Iterable[tuple[str, str]]) -> None:
        self._ended.update(ended)
        if self._ended:
            self._wake_once("released", self._released)

    def _released(self) -> Taken[Pull]:
        """Take the held pulls of topics and groups in `_ended`, those that are added meanwhile included."""
        while self._ended:
            ended, self._ended = self._ended, set()
            yield from self.holds.release(partial(_is_of, ended))

    def look_again(self) -> None:
        """Answer all held pulls according to the broker's new role."""
        self._wake_later(self.holds.release(lambda _: True))

    def _wake_once(self, name: str, take: Callable[[], Taken[Pull]]) -> None:
        """Answer the pulls that `take` returns, unless others of the same name are still being answered."""
        if name not in self._running:
            self._running.add(name)
            self._wake_later(self._noted(name, take()))

    def _noted(self, name: str, pulls: Taken[Pull]) -> Taken[Pull]:
        yield from pulls
        self._running.discard(name)

    def _wake_later(self, pulls: Taken[Pull]) -> None:
        """Answer these pulls in the next turns of the event loop."""
        self._woken.append(pulls)
        self._wake.set()

    def _look_again(self, pull: Pull, *, may_correct: bool = True) -> None:
        """Answer a pull that was held or has waited, and raise nothing: other pulls wait, and deriving may be the caller.

        Args:
            may_correct: whether this broker knows the end of the queue; otherwise the client keeps its offset.
        """
        access = self.access
        try:
            if access is not None and access.version != pull.access_version:
                refusal = access.later_refusal(pull.connection, _request_of(pull))
                if refusal is not None:
                    self._refuse(pull, refusal.code, refusal.remark)
                    return
            result = self._read(pull)
            if may_correct:
                self._answer(pull, result, code_of(result.status, pull.offset))
            else:
                self._answer(pull, attrs.evolve(result, next_offset=pull.offset), ResponseCode.PULL_RETRY_IMMEDIATELY)
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged
            reason = fault_of(error)
            log.error("held_pull_failed", topic=pull.topic, queue_id=pull.queue_id, reason=reason, trace=trace_of(error))
            self._refuse(pull, ResponseCode.SYSTEM_ERROR, reason)

    @staticmethod
    def _refuse(pull: Pull, code: ResponseCode, remark: str) -> None:
        if not pull.is_oneway:
            pull.connection.answer(_request_of(pull), code, remark=remark)

    async def run(self) -> None:
        """Answer the pulls that `_wake_later` was given, until cancelled."""
        woken = self._woken
        while True:
            await self._wake.wait()
            while woken:
                pulls = woken[0]
                woken.rotate(-1)
                if self._answer_some(pulls):
                    woken.remove(pulls)
                await trio.lowlevel.checkpoint()
            self._wake = trio.Event()

    def _answer_some(self, pulls: Taken[Pull]) -> bool:
        """Answer as many of these pulls as one turn allows; returns whether these were all."""
        answered = 0
        for visited, held in enumerate(pulls, 1):
            if held is not None:
                self._look_again(held.request)
                answered += 1
            if answered >= WOKEN_PER_TURN_MAX or visited >= VISITED_PER_TURN_MAX:
                return False
        return True


def _is_of(ended: AbstractSet[tuple[str, str]], pull: HeldPull[Pull]) -> bool:
    """Whether a pull belongs to one of these topics, each with an empty group, or of these topics and groups."""
    return (pull.topic, "") in ended or (pull.topic, pull.request.group.group_name) in ended


def expression_refusal(subscription: Subscription) -> str:
    """The reason for refusing a filter that is not a tag expression."""
    return (
        f"this broker filters by tags only: the subscription to {subscription.topic} is of type "
        f"{subscription.expression_type} ({subscription.expression!r})"
    )


def _request_of(pull: Pull) -> RemotingCommand:
    """What an answer, and another look at its sender's rights, need of the request of a pull."""
    ext = {"consumerGroup": pull.group.group_name, "topic": pull.topic, ACCESS_KEY: pull.user}
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=pull.opaque, wire=pull.wire)


def encode_answer(pull: Pull, result: GetResult, code: ResponseCode, broker_id: int) -> bytes:
    """Encode the whole frame of an answer."""
    slices = result.slices if code is ResponseCode.SUCCESS else []
    if pull.wire is not Wire.JSON:
        ext = {
            "maxOffset": result.max_offset,
            "minOffset": result.min_offset,
            "nextBeginOffset": result.next_offset,
            "suggestWhichBrokerId": broker_id,
        }
        return encode_frame(_request_of(pull).response(code, ext, b"".join(slices), result.status.name))
    header = _HEADER % (
        code,
        result.max_offset,
        result.min_offset,
        result.next_offset,
        broker_id,
        pull.opaque,
        _REMARKS[result.status],
    )
    return b"".join((frame_start(len(header), result.size if slices else 0), header, *slices))
