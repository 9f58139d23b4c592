"""The common part of the clients whose trio client runs in a thread of its own: for plain threads and for tasks of asyncio.

Messages cross from the client's thread to the application many at a time. Those that no loop has seen yet wait in `fetched`
for whoever asks next; those of an ordered queue wait in the iteration that has taken them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar

import attrs

from ..message.message import Body, MessageQueue
from ..world.threads import LoopEndedError, OtherProcessError, ThreadLoop
from . import consumer, pull
from .arguments import check_queues
from .consumer_options import ConsumerOptions
from .errors import ClientError, Closed, OtherProcess, Stopped
from .name_servers import parse_name_servers
from .received import ReceivedMessage, RecordView, give_back_unfinished
from .statistics import ConsumerStatistics

P = ParamSpec("P")
T = TypeVar("T")
Client = TypeVar("Client")
AnyHost = TypeVar("AnyHost", bound="Host[Any]")
ConsumerHost = TypeVar("ConsumerHost", bound="Host[consumer.Consumer[Any]]")
PullHost = TypeVar("PullHost", bound="Host[pull.PullConsumer]")
AnyConsumer = TypeVar("AnyConsumer", bound="HostedConsumer[Any]")

AWAITED = ("on_assigned", "on_revoked")
"""The options that are callbacks whose end the client waits for."""
MESSAGES_PER_TAKE = 256
"""How many messages cross to the application together."""


@contextmanager
def in_words_of_clients() -> Generator[None]:
    """Raise the errors of a loop in a thread as the errors of clients."""
    try:
        yield
    except LoopEndedError as error:
        message = "the client was closed during the call" if error.begun else "the client is closed"
        raise Closed(message, may_have_been_stored=error.begun) from error
    except OtherProcessError as error:
        raise OtherProcess(str(error)) from error


def contained(callback: Callable[P, T]) -> Callable[P, T]:
    """A callback that raises a `RuntimeError` in place of a `SystemExit` or another exception that is no `Exception`.

    Nobody calls it who could be given that, so it would end the client. As a failure it is logged, and the client goes on.
    """

    @wraps(callback)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return callback(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the callback raised {error!r}") from error

    return call


@attrs.define(eq=False)
class Host(Generic[Client]):
    """The thread in which one client runs."""

    client: Client
    _loop: ThreadLoop

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function, which must not raise, in the client's thread, after earlier ones; does not wait.

        Raises:
            Closed: the client is closed. OtherProcess: it was opened by another process.
        """
        with in_words_of_clients():
            self._loop.soon(function)

    @property
    def failure(self) -> BaseException | None:
        """Why the client ended, unless it was closed."""
        return self._loop.failure


def settle(messages: Sequence[ReceivedMessage]) -> None:
    """Acknowledge those of the messages that are still in hand; in the client's thread."""
    for message in messages:
        message.settle()


def put_back(messages: Sequence[ReceivedMessage]) -> None:
    """Hand messages out again that the application has not seen, in their order; in the client's thread."""
    for message in reversed(messages):
        message.put_back()


@attrs.define(eq=False)
class Hosted(Generic[AnyHost]):
    """What all clients for threads and for asyncio have in common."""

    host: AnyHost

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask these name servers from now on; see `Producer.update_name_servers`."""
        texts = namesrv if isinstance(namesrv, str) else list(namesrv)
        parse_name_servers(texts)
        self.later(partial(self.host.client.update_name_servers, texts))

    def later(self, change: Callable[[], object]) -> None:
        """Make a change in the client's thread, whose arguments were checked; nothing happens if that is too late."""

        def change_now() -> None:
            with suppress(ClientError):  # it has been closed, or reads other queues meanwhile
                change()

        self.host.soon(change_now)


class HostedMessage(RecordView[Body], Generic[AnyHost, Body]):
    """A received message outside of its client's thread; see `ReceivedMessage`."""

    __slots__ = ("_acknowledged", "_host", "received")

    def __init__(self, received: ReceivedMessage[Any], host: AnyHost) -> None:
        received.copy_to(self)
        self.received = received
        self._host = host
        self._acknowledged = False

    @property
    def in_hand(self) -> bool:
        """Whether the application has the message and has neither acknowledged it nor asked for it again."""
        return not self._acknowledged and self.received.in_hand

    def _acknowledge(self) -> None:
        self.received.check_open()
        self._host.soon(self.received.settle)
        self._acknowledged = True


@attrs.define(eq=False)
class HostedConsumer(Hosted[ConsumerHost]):
    """What the consumers for threads and for asyncio have in common; see `Consumer`."""

    fetched: deque[ReceivedMessage] = attrs.field(init=False, factory=deque[ReceivedMessage])
    """Messages taken by an iteration and not yet seen by the application; whoever asks next gets them."""
    _iterations: dict[int, None] = attrs.field(init=False, factory=dict[int, None])
    """The identities of the open iterations; a dictionary, because changing it is thread-safe."""

    def stop(self) -> None:
        """Hand out no more messages, so that loops end when they have finished what they have; see `Consumer.stop`."""
        with suppress(Closed):  # a program that ends may stop a consumer that has ended by itself
            self.host.soon(self.host.client.stop)
        self.host.client.stopped = True  # at once for loops of the caller, which do not wait for the client's thread

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out no messages of these queues, or of all, until `resume`; see `Consumer.pause`."""
        chosen = None if queues is None else check_queues("queues", queues)
        self.host.client.pause(chosen)  # at once for loops of the caller, which do not wait for the client's thread
        self.later(
            partial(self.host.client.pause, chosen)
        )  # again, because a `resume` of before may still wait for that thread

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out messages of these queues again, or of all; see `Consumer.resume`."""
        self.later(partial(self.host.client.resume, None if queues is None else check_queues("queues", queues)))

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are read now and hand out nothing until `resume`, sorted."""
        return self.host.client.paused

    def statistics(self) -> ConsumerStatistics:
        """What this consumer has done since it was opened, and what it holds now.

        The client's thread counts an acknowledgement a moment after the call that made it; after `commit` all are counted.
        """
        return self.host.client.statistics()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self.host.client.stopped

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.host.client.group

    @property
    def options(self) -> ConsumerOptions:
        """How the consumer was opened."""
        return self.host.client.options

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now, sorted; those of the group's retries, `%RETRY%` and its name, are among them."""
        return self.host.client.queues

    @property
    def client_id(self) -> str:
        """The id by which brokers and other members identify this consumer."""
        return self.host.client.client_id

    # ------------------------------------------------------------------------------------------- for loops and blocks

    def begun(self, iteration: HostedIteration[Any]) -> None:
        """Note that a loop may ask for messages."""
        self._iterations[id(iteration)] = None

    def ended(self, identity: int, last: ReceivedMessage | None, unseen: deque[ReceivedMessage]) -> None:
        """Take over what an iteration leaves; with the last iteration, nobody may ask for what was fetched for all."""
        self._iterations.pop(identity, None)
        if not self._iterations:
            while self.fetched:
                with suppress(IndexError):  # another thread takes from it too
                    unseen.append(self.fetched.popleft())
        self.left(last, unseen)

    def left(self, last: ReceivedMessage | None, unseen: deque[ReceivedMessage]) -> None:
        """Give back what a loop had in hand, and make available again what it has not seen."""
        if last is None and not unseen:
            return
        messages = [*unseen]
        unseen.clear()
        with suppress(ClientError):  # of a consumer that is closed, the next reader of the queue gets them
            self.host.soon(partial(put_back, messages))
            if last is not None:
                self.host.soon(last.give_back)

    def at_hand(self, messages: deque[ReceivedMessage]) -> ReceivedMessage | None:
        """The next one of the messages that have crossed already and may be handed out; None if there is none.

        Raises:
            Closed: the consumer is closed, and others get what was fetched before.
            Stopped: the application has stopped it.
        """
        if self.stopped:
            raise Stopped("the consumer has been stopped")
        unwanted: list[ReceivedMessage] = []
        found: ReceivedMessage | None = None
        with suppress(IndexError):  # another thread has taken the last one
            while found is None and messages:
                message = messages.popleft()
                if message.is_current and not message.is_withheld:
                    found = message
                else:  # withheld, or its queue was moved in the meantime, or it comes again as another delivery
                    unwanted.append(message)
        if unwanted:
            self.host.soon(partial(put_back, unwanted))
        if found is not None:
            found.check_open()
        return found

    def fetched_before(self, messages_max: int) -> list[ReceivedMessage]:
        """Take messages that have crossed already and that no loop has seen; raises as `at_hand` does."""
        taken: list[ReceivedMessage] = []
        while len(taken) < messages_max and (message := self.at_hand(self.fetched)) is not None:
            taken.append(message)
        return taken

    @contextmanager
    def finishing(self, received: Sequence[ReceivedMessage]) -> Generator[None]:
        """Acknowledge messages when the block ends normally, and give them back when it does not; see `Consumer.take`."""
        try:
            yield
        except BaseException:
            with suppress(ClientError):  # of a consumer that is closed, the next reader of the queue gets them
                self.host.soon(partial(give_back_unfinished, received, ordered=self.options.orderly))
            raise
        for message in received:
            message.check_open()
        self.host.soon(partial(settle, received))


@attrs.define(eq=False)
class HostedIteration(Generic[AnyConsumer]):
    """One loop over a consumer, which acknowledges a message by asking for the next one; see `Consumer.__aiter__`."""

    _consumer: AnyConsumer
    _acknowledges: bool
    """Whether asking for the next message acknowledges the last one."""
    _last: ReceivedMessage | None = None
    """The message that was handed out last and that the next step acknowledges."""
    _own: deque[ReceivedMessage] = attrs.field(factory=deque[ReceivedMessage])
    """Messages taken from an ordered queue, all for this loop, which it has not seen yet."""

    def __attrs_post_init__(self) -> None:
        self._consumer.begun(self)

    def begin(self) -> None:
        """Begin a loop: what an earlier loop over this iterator has not acknowledged is given back."""
        self._consumer.left(self._last, self._own)
        self._last = None

    def settle_last(self) -> None:
        """Acknowledge the message that was handed out last."""
        if self._last is not None:
            last, self._last = self._last, None
            self._consumer.host.soon(last.settle)

    @property
    def messages(self) -> deque[ReceivedMessage]:
        """Where the messages for this loop wait."""
        return self._own if self._consumer.options.orderly else self._consumer.fetched

    def hand_out(self, message: ReceivedMessage) -> None:
        """Remember the message that the loop is given now."""
        if self._acknowledges:
            self._last = message

    def __del__(self) -> None:
        self._consumer.ended(id(self), self._last, self._own)


@attrs.define(eq=False)
class HostedPullConsumer(Hosted[PullHost]):
    """What the pull consumers for threads and for asyncio have in common; see `PullConsumer`."""

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        return self.host.client.assignment()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no messages of these assigned queues until `resume`; prefetched ones are kept."""
        self.later(partial(self.host.client.pause, self._assigned(queues)))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again."""
        self.later(partial(self.host.client.resume, self._assigned(queues)))

    def _assigned(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        several = check_queues("queues", queues)
        for queue in several:
            self.host.client.position(queue)  # raises if it is not assigned
        return several
