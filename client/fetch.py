"""The pull loop of one queue: choose a member, act on its answer, and retry (RocketMQ pull, long polling).

One pull per queue is pending at any time; the broker holds it while there is nothing to read. When the master is gone, the next
pulls go to another member, until that member suggests the master again and the master answers.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ..message.errors import CorruptRecord
from ..message.flags import PULL_COMMIT_OFFSET, PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from ..message.message import MessageQueue
from ..message.units import MASTER_ID
from ..remoting.channel import Channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, wire_fields
from ..remoting.errors import ConnectionLost
from ..world.events import get_logger
from ..world.network import Address
from .assigned import PULL_MESSAGES_MAX, AssignedQueue
from .errors import BadAnswer, ClientError, NoAnswer, NoRoute, Refused, Unreachable, refusal
from .queue_calls import integer_of, offset_at, request
from .received import Origin, select_tags, split_records
from .session import Session
from .subscription import ReadFrom, Subscription

log = get_logger(__name__)

PULL_SECONDS = 30.0
SUSPEND_MS = 15_000
REFUSED_PAUSE_SECONDS = 1.0  # RocketMQ's `pullTimeDelayMillsWhenException`
FLOW_CONTROL_PAUSE_SECONDS = 0.02
BEHIND_PAUSE_SECONDS = 1.0
"""The pause before a slave that is behind is asked again; RocketMQ's clients ask again at once, in a busy loop."""
CLOCKS_APART_MS = 1000
"""How far the clocks of two masters may be apart when we look where the messages begin that have replaced others."""
UNREACHABLE_PAUSE_SECONDS = 0.1
UNREACHABLE_PAUSE_SECONDS_MAX = 1.0


@attrs.frozen
class OffsetMoved:
    """A queue does not contain the offset at which the group was to continue, so the group continues at another one."""

    queue: MessageQueue
    expected: int
    """The offset at which the group was to continue."""
    actual: int
    """The offset at which it continues. If it is higher, the messages between the two have expired and were not delivered; if
    it is lower, the broker has lost messages that the group has read; there may be others at their offsets."""


OnOffsetMoved = Callable[[OffsetMoved], object]


@attrs.frozen
class PullPlan:
    """The settings that all pulls of one subscription share."""

    group: str
    subscription: Subscription
    commits: bool
    """Whether a pull also commits the group's offset."""
    lite: bool = False
    messages_max: int = PULL_MESSAGES_MAX
    suspend_ms: int = SUSPEND_MS
    read_from: ReadFrom = ReadFrom.SUGGESTED
    on_offset_moved: OnOffsetMoved | None = None


@attrs.frozen
class _Last:
    """The last message that came."""

    epoch: int
    """The epoch of the queue at that time."""
    offset: int
    stored_ms: int


@attrs.define(eq=False)
class Fetcher:
    """Pulls one queue and keeps its buffer filled."""

    session: Session
    plan: PullPlan
    assigned: AssignedQueue
    origin: Origin
    on_messages: Callable[[], None]
    on_moved: Callable[[int], None]
    """Called with the offset to continue at, when the requested one is not in the queue."""
    refused: str = ""
    """Why the last answer was none that can be used; empty if it was one."""
    _room: trio.Event = attrs.field(factory=trio.Event)
    _pause: float = UNREACHABLE_PAUSE_SECONDS
    _last: _Last | None = None
    _trusted: Channel | None = None
    """The connection whose broker is known to have that message, or not to have another one in its place."""

    async def run(self) -> None:
        """Pull until cancelled."""
        assigned = self.assigned
        assigned.on_room = self._wake
        while True:
            if assigned.wait_for_room():
                self._room = trio.Event()
                await self._room.wait()
                continue
            try:
                pause = await self._read(*await self._member())
                self._pause = UNREACHABLE_PAUSE_SECONDS
            except (Unreachable, NoAnswer, NoRoute) as error:
                pause = await self._look_elsewhere(error)
            except Refused as error:
                self.refused = str(error)
                if times := self.session.repeated.due(("compare", assigned.queue.broker_name, str(error)), trio.current_time()):
                    log.warning("queue_not_compared", queue=str(assigned.queue), reason=str(error), times=times)
                pause = REFUSED_PAUSE_SECONDS
            except (BadAnswer, CorruptRecord) as error:
                # Skipping it would silently lose messages, so the queue is stopped at this offset until the operator acts.
                self.refused = str(error)
                log.error("pull_answer_unusable", queue=str(assigned.queue), offset=assigned.next_offset, reason=str(error))
                pause = REFUSED_PAUSE_SECONDS
            if pause:
                await trio.sleep(pause)

    def _wake(self) -> None:
        self._room.set()

    async def _member(self) -> tuple[Address, int]:
        """The address and broker id of the member that gets the next pull, after a look at the route if there is none."""
        queue, session = self.assigned.queue, self.session
        found = self._next_member()
        if found is None:
            await session.refresh_route(queue.topic)
            found = session.routes.member(queue.broker_name, self._wanted())
        if found is None:
            raise Unreachable(queue.broker_name, "no member of it is in the route")
        return found

    async def _read(self, address: Address, broker_id: int) -> float:
        """Pull once and act on the answer; return the seconds to pause before the next pull.

        At the first pull on a connection, move back if the queue has other messages in place of those that we have read.
        Brokers that have lost messages give their offsets to later ones; a DLedger group that begins anew gives them from 0 on.
        Once the queue has more of them than we have read, we would skip those before our offset, and nobody would know.
        """
        assigned, epoch, last = self.assigned, self.assigned.epoch, self._last
        channel = self.session.channel_to(address)
        if channel is self._trusted or (last is not None and last.epoch != epoch):
            last = None
        commits = self.plan.commits and broker_id == MASTER_ID and last is None
        answer = await self._pull(address, self._request(commits=commits))
        start: int | None = None
        # We compare after the pull and not before, because a member that is behind or starts cannot say whether the message is
        # replaced, and because RocketMQ's brokers return the offset of a reset only once.
        if last is not None and self._is_up_to_date(answer, address) and await self._is_replaced(last, address):
            start = min(last.offset, await offset_at(self.session, assigned.queue, last.stored_ms - CLOCKS_APART_MS))
        if assigned.epoch != epoch:
            return 0.0  # the queue was reset in the meantime, so the answer is dropped
        if start is None:
            return self._take(answer, address, channel)
        self._moved(start)
        self.on_moved(start)
        return 0.0

    def _is_up_to_date(self, answer: RemotingCommand, address: Address) -> bool:
        """Whether a pull was answered from a queue, and not by a slave that is behind the offset that we have reached."""
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            return integer_of(answer, "nextBeginOffset", address) != self.assigned.next_offset
        return answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)

    async def _is_replaced(self, last: _Last, address: Address) -> bool:
        """Whether a member that is up to date has lost the message that we read last, or has another one at its offset.

        Raises:
            Refused: the message cannot be compared now.
        """
        command = self._request(commits=False)
        sys_flag = int(command.ext["sysFlag"]) & ~PULL_SUSPEND
        command.ext |= wire_fields({"queueOffset": last.offset, "maxMsgNums": 1, "sysFlag": sys_flag})
        command.ext |= {"subscription": "*", "expressionType": "TAG"}  # another message may not match ours
        answer = await self.session.call(address, command)
        code = answer.code
        if code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            return integer_of(answer, "maxOffset", address) <= last.offset  # if the queue ends above, the message has expired
        if code == ResponseCode.SYSTEM_ERROR:
            return False  # our brokers' answer for a message that has rotted, which cannot be compared and is not needed again
        if code != ResponseCode.SUCCESS:
            raise refusal(code, answer.remark, str(address))
        try:
            came = split_records(self.origin, answer.body)
        except CorruptRecord:
            return False  # it has rotted on a broker that does not verify what it sends
        return any(each.queue_offset == last.offset and each.store_timestamp != last.stored_ms for each in came)

    async def _pull(self, address: Address, command: RemotingCommand) -> RemotingCommand:
        session = self.session
        try:
            return await session.call(address, command, PULL_SECONDS)
        except NoAnswer as error:
            if isinstance(error.__cause__, ConnectionLost):  # after a time-out, a heartbeat detects whether the broker is dead
                session.avoid(address)
            raise

    def _next_member(self) -> tuple[Address, int] | None:
        """The address and broker id of the member that gets the next pull."""
        queue, session = self.assigned.queue, self.session
        return session.routes.member(queue.broker_name, self._wanted(), session.avoided())

    def _wanted(self) -> int:
        """The broker id of the member to read from."""
        chosen = self.plan.read_from.value
        return self.assigned.broker_id if chosen is None else int(chosen)

    def _request(self, *, commits: bool) -> RemotingCommand:
        assigned, plan = self.assigned, self.plan
        queue, subscription = assigned.queue, plan.subscription
        committable = assigned.committable
        sys_flag = PULL_SUSPEND | PULL_SUBSCRIPTION | (PULL_LITE if plan.lite else 0)
        commits = commits and assigned.may_commit
        return request(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": plan.group,
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "queueOffset": assigned.next_offset,
                "maxMsgNums": plan.messages_max,
                "sysFlag": sys_flag | (PULL_COMMIT_OFFSET if commits and committable > 0 else 0),
                "commitOffset": committable if commits else 0,
                "suspendTimeoutMillis": plan.suspend_ms,
                "subscription": subscription.expression,
                "subVersion": subscription.version,
                "expressionType": subscription.expression_type,
                "bname": queue.broker_name,
            },
        )

    def _take(self, answer: RemotingCommand, address: Address, channel: Channel) -> float:
        """Act on an answer; return the seconds to pause before the next pull."""
        assigned = self.assigned
        code = answer.code
        self.refused = ""
        if code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            next_offset = integer_of(answer, "nextBeginOffset", address)
            assigned.max_offset = integer_of(answer, "maxOffset", address)
            assigned.broker_id = integer_of(answer, "suggestWhichBrokerId", address)
            messages = split_records(self.origin, answer.body) if code == ResponseCode.SUCCESS else []
            if messages:
                self._last = _Last(assigned.epoch, messages[-1].queue_offset, messages[-1].store_timestamp)
            oldest = integer_of(answer, "minOffset", address)
            if assigned.next_offset < oldest <= (messages[0].queue_offset if messages else next_offset):
                self._moved(oldest)
            self._trusted = channel
            if code == ResponseCode.SUCCESS:
                assigned.add(select_tags(messages, self.plan.subscription.tags), next_offset)
                if assigned.buffered:
                    self.on_messages()
            elif not self._is_up_to_date(answer, address):
                self._trusted = None  # if it becomes master, it may take other messages in place of those that it lacks
                # The slave is behind the offset that we reached on its master; pause unless another member gets the next pull.
                found = self._next_member()
                return BEHIND_PAUSE_SECONDS if found is not None and found[0] == address else 0.0
            elif next_offset < assigned.next_offset:
                self.on_moved(next_offset)  # the messages from there on will be pulled again
            else:
                assigned.next_offset = next_offset
            return 0.0
        if code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = integer_of(answer, "nextBeginOffset", address)
            self._moved(next_offset)
            self.on_moved(next_offset)
            return 0.0
        if code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_SECONDS
        self._trusted = None  # the topic may be deleted, and come back with other messages
        self.refused = str(refusal(code, answer.remark, str(address)))
        if times := self.session.repeated.due(("refusal", address, code, answer.remark), trio.current_time()):
            queue = str(assigned.queue)
            log.warning("pull_refused", queue=queue, broker=str(address), code=code, remark=answer.remark, times=times)
        return REFUSED_PAUSE_SECONDS

    def _moved(self, actual: int) -> None:
        """Log that the queue continues at another offset, and notify the application."""
        moved = OffsetMoved(self.assigned.queue, self.assigned.next_offset, actual)
        log.warning("offset_out_of_range", queue=str(moved.queue), offset=moved.expected, next_offset=actual)
        if self.plan.on_offset_moved is not None:
            try:
                self.plan.on_offset_moved(moved)
            except Exception as error:
                log.error("offset_callback_failed", exc_info=error, queue=str(moved.queue))

    async def _look_elsewhere(self, error: ClientError) -> float:
        """React to a member that did not answer; return the pause: none if another one is available, else refresh the route."""
        queue, session = self.assigned.queue, self.session
        found = self._next_member()
        if found is not None and found[0] not in session.avoided():
            log.info("pull_moved_to_other_member", queue=str(queue), broker=str(found[0]), reason=str(error))
            return 0.0
        if times := session.repeated.due(("pull", queue.broker_name, str(error)), trio.current_time()):
            log.warning("pull_failed", queue=str(queue), reason=str(error), times=times)
        try:
            await session.refresh_route(queue.topic)
        except NoRoute as no_route:
            log.debug("route_not_refreshed", topic=queue.topic, reason=no_route.reason.name)
        pause, self._pause = self._pause, min(self._pause * 2, UNREACHABLE_PAUSE_SECONDS_MAX)
        return pause
