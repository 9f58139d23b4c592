"""The common part of all sends of a producer: choose the queue of a message, and retry a failed attempt.

One send has a total time limit, within which `retry.py` decides whether and where it is retried; this is the trio shell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from ..message.message import Message, MessageQueue
from ..message.strings import string_hash
from ..remoting.codes import RequestCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import CallTimeout, ConnectionLost
from ..world.events import get_logger
from .arguments import check_function, check_queue, check_text, shown
from .errors import ClientError, Closed, InvalidArgument, NoPermission, NoRoute, SendTimeout, Unreachable
from .latency import BrokerLatencies
from .publications import Publications
from .retry import Attempts, attempt_seconds, choose_queue
from .send_numbers import SendNumbers
from .sending import Outgoing, ProducerOptions, Publication, SendStatus, Target, frame_parts, result_of, target_of
from .session import Session

log = get_logger(__name__)

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message from the writable queues of its topic."""

Choose = Callable[[Publication], Target]
"""Chooses the queue of a message for each attempt, because the topic's queues may change; None where any queue will do."""

SEND_OK = SendStatus.SEND_OK.value
SINGLE, BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)


ROUTE_SECONDS = 1.0
"""How long a failed send waits for a new route at most, and a third of its time; then it goes on by the old one."""


@attrs.define(eq=False, repr=False)
class Transmitter:
    """Chooses queues and makes the attempts of sends, for one producer."""

    group: str
    options: ProducerOptions
    publications: Publications
    session: Session
    numbers: SendNumbers
    latencies: BrokerLatencies = attrs.field(factory=BrokerLatencies)
    closed: bool = False
    stored: int = 0
    """How many messages were acknowledged; this and the next two for `Producer.statistics`."""
    failed_messages: int = 0
    retries: int = 0

    def next_target(self, publication: Publication) -> Target:
        counter = publication.counter = publication.counter + 1
        if self.latencies.any and self.options.avoid_slow_brokers:
            avoid = self.latencies.to_avoid(trio.current_time())
            return publication.targets[choose_queue(publication.queues, counter, avoid)]
        return publication.targets[counter % len(publication.targets)]

    def chosen(
        self,
        publication: Publication,
        message: Message,
        key: str | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
    ) -> Target:
        if (key is not None) + (queue is not None) + (selector is not None) > 1:
            raise InvalidArgument("give at most one of key, queue and selector")
        check_function("selector", selector)
        if key is not None:
            check_text("key", key)
            # Java's remainder keeps the sign of the hash, and the selector takes its absolute value.
            return publication.targets[abs(string_hash(key)) % len(publication.targets)]
        if selector is not None:
            queue = selector(publication.queues, message)
            if not isinstance(queue, MessageQueue):  # pyright: ignore[reportUnnecessaryIsInstance] - selectors are not ours
                raise InvalidArgument(f"selector must return one of the queues that it is given (it returned {shown(queue)})")
        assert queue is not None
        return self.fixed_target(publication, queue)

    def fixed_target(self, publication: Publication, queue: MessageQueue) -> Target:
        check_queue("queue", queue)
        for target in publication.targets:
            if target.queue == queue:
                return target
        master = self.session.routes.master(queue.broker_name)
        if queue.topic != publication.topic or master is None:
            raise InvalidArgument(f"{queue} is no queue that {publication.topic!r} can be sent to now")
        return target_of(self.group, queue, master)

    def same_target(self, publication: Publication, queue: MessageQueue) -> Target:
        """The target of `queue`, or the next one if the topic does not have that queue any more."""
        for target in publication.targets:
            if target.queue == queue:
                return target
        return self.next_target(publication)

    async def send(
        self,
        publication: Publication,
        outgoing: Outgoing,
        target: Target,
        seconds: float,
        choose: Choose | None,
        count: int = 1,
    ) -> tuple[RemotingCommand, Target]:
        """Send one request with `count` messages, and return an answer that means stored."""
        deadline = trio.current_time() + seconds
        elsewhere = publication.broker_count > 1 and choose is None
        limit = attempt_seconds(seconds, self.options.retries, elsewhere=elsewhere)
        sequence = self.numbers.begin(count)
        try:
            outgoing = attrs.evolve(outgoing, number=self.numbers.field(sequence))
            answer = await self._attempt(target, outgoing, limit)
            found = await self.with_guarantees(publication, outgoing, target, answer, deadline, choose)
        except ClientError as error:
            return await self.send_again(publication, outgoing, target, error, deadline, seconds, choose, count)
        else:
            self.stored += count
            return found
        finally:
            self.numbers.end(sequence)

    async def send_again(
        self,
        publication: Publication,
        outgoing: Outgoing,
        target: Target,
        failure: ClientError,
        deadline: float,
        seconds: float,
        choose: Choose | None,
        count: int = 1,
    ) -> tuple[RemotingCommand, Target]:
        """Make further attempts after the first one of a request with `count` messages has failed."""
        try:
            found = await self._repeat(publication, outgoing, target, failure, deadline, seconds, choose)
        except ClientError:
            self.failed_messages += count
            raise
        self.stored += count
        return found

    async def _repeat(
        self,
        publication: Publication,
        outgoing: Outgoing,
        target: Target,
        failure: ClientError,
        deadline: float,
        seconds: float,
        choose: Choose | None,
    ) -> tuple[RemotingCommand, Target]:
        """Make further attempts until one succeeds or none is left.

        Once the message may be stored at a broker that recognises its number, all attempts go to that broker's group: there the
        message is stored once, and anywhere else it could be stored again.
        """
        attempts = Attempts(self.options.retries)
        holder: MessageQueue | None = None
        while True:
            before = publication
            once = holder is not None or (bool(outgoing.number) and target.address in self.session.knows_numbers)
            if failure.may_have_been_stored and once and holder is None:
                holder = target.queue
            if failure.invalid_metadata and not isinstance(failure, NoRoute):
                now = trio.current_time()
                publication = await self.publications.find_again(publication, now + min((deadline - now) / 3, ROUTE_SECONDS))
                if choose is not None and isinstance(failure, NoPermission) and self._stays_absent(publication, target, choose):
                    failure.retriable, failure.may_have_been_stored = False, attempts.may_have_been_stored
                    raise failure
            else:
                publication = self.publications.known.get(publication.topic, publication)
            elsewhere = publication.broker_count > 1 and choose is None and holder is None
            found = publication is not before  # the new route has other targets, a new master for example
            spread = self.session.world.randomness.random()
            pause = attempts.again(failure, elsewhere=elsewhere or found, spread=spread, once=once)
            if pause is None:
                failure.may_have_been_stored = attempts.may_have_been_stored  # by any attempt, not only the last one
                raise failure
            left = deadline - trio.current_time() - pause
            if left <= 0:
                raise SendTimeout(
                    publication.topic,
                    round(seconds * 1000),
                    attempts.made - 1,
                    may_have_been_stored=attempts.may_have_been_stored,
                    last=str(failure),
                ) from failure
            log.debug("send_retried", topic=publication.topic, broker=target.queue.broker_name, reason=str(failure))
            await trio.sleep(pause)
            limit = attempt_seconds(left, attempts.retries_left, elsewhere=elsewhere)
            self.retries += 1
            try:
                if holder is not None:
                    target = self._target_of(publication, holder)
                else:
                    target = self._target_after(publication, target) if choose is None else choose(publication)
                answer = await self._attempt(target, outgoing, limit)
                return await self.with_guarantees(publication, outgoing, target, answer, deadline, choose)
            except ClientError as error:
                failure = error

    async def with_guarantees(
        self,
        publication: Publication,
        outgoing: Outgoing,
        target: Target,
        answer: RemotingCommand,
        deadline: float,
        choose: Choose | None,
    ) -> tuple[RemotingCommand, Target]:
        """Send a message that is stored with less than its broker's guarantees to other brokers too, if the options say so.

        Returns: the answer of the broker that gives all guarantees, or the first answer if none does.
        """
        last, left = target, self.options.retries if self.options.retry_unless_ok and choose is None else 0
        while answer.code != SEND_OK and left > 0 and publication.broker_count > 1:
            last, left = self._target_after(publication, last), left - 1
            limit = attempt_seconds(deadline - trio.current_time(), left, elsewhere=True)
            if limit <= 0 or last.queue.broker_name == target.queue.broker_name:
                break
            try:
                again = await self._attempt(last, outgoing, limit)
            except ClientError as error:
                log.debug("send_elsewhere_failed", broker=last.queue.broker_name, reason=str(error))
            else:
                answer, target = (again, last) if again.code == SEND_OK else (answer, target)
        return answer, target

    def _target_of(self, publication: Publication, holder: MessageQueue) -> Target:
        """A target at the broker that may have the message, preferably the same queue.

        Raises:
            Unreachable: the broker's group has no master now.
        """
        own = [target for target in publication.targets if target.queue.broker_name == holder.broker_name]
        if not own:
            raise Unreachable(holder.broker_name, "it may have stored the message, and it has no master now")
        return next((target for target in own if target.queue == holder), own[0])

    def _stays_absent(self, publication: Publication, target: Target, choose: Choose) -> bool:
        """Whether a message with a fixed queue would again be sent to a queue that does not exist in the newest route."""
        try:
            return choose(publication).queue == target.queue and not self._exists(target.queue)
        except InvalidArgument:
            return True

    def _exists(self, queue: MessageQueue) -> bool:
        route = self.session.routes.routes.get(queue.topic)
        return route is None or any(
            each.broker_name == queue.broker_name and queue.queue_id < each.write_queues for each in route.queues
        )

    def _target_after(self, publication: Publication, target: Target) -> Target:
        publication.counter += 1
        avoid = self.latencies.to_avoid(trio.current_time()) if self.options.avoid_slow_brokers else frozenset[str]()
        return publication.targets[choose_queue(publication.queues, publication.counter, avoid, target.queue.broker_name)]

    async def _attempt(self, target: Target, outgoing: Outgoing, seconds: float) -> RemotingCommand:
        """Send once, and return an answer that means stored; every failure is a `ClientError` and recorded for the broker."""
        started = trio.current_time()
        try:
            channel = self.session.channel_to(target.address)
            opaque = channel.next_opaque()
            template, code = (target.batch, BATCH) if outgoing.batch else (target.single, SINGLE)
            parts = frame_parts(
                template,
                outgoing.sys_flag,
                outgoing.born_ms,
                outgoing.flag,
                outgoing.properties,
                opaque,
                outgoing.body,
                outgoing.number,
            )
            answer = await channel.exchange(opaque, code, parts, seconds, started)
            result_of(answer, "", target.queue, target.address)
        except (ClientError, CallTimeout, ConnectionLost) as error:
            raise self.failed(target, error) from error
        now = trio.current_time()
        self.latencies.sent(target.queue.broker_name, now - started, now)
        return answer

    def failed(self, target: Target, error: ClientError | CallTimeout | ConnectionLost) -> ClientError:
        """Record a failed attempt; return the error for the caller."""
        failure = error if isinstance(error, ClientError) else self.session.failure_of(target.address, error)
        if self.closed:
            return Closed("the producer was closed meanwhile", may_have_been_stored=failure.may_have_been_stored)
        if failure.retriable:
            self.latencies.failed(target.queue.broker_name, trio.current_time())
        if failure is not error:
            failure.__cause__ = error
        return failure
