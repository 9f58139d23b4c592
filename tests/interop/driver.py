"""Conversation with a driver: a small program of ours, in the language of a foreign client, that carries out commands.

A command is one line, ``number name key=value …`` with percent-encoded values; answers are JSON lines that carry the
number, the last one ``{"event": "done"}``. Consumers that a command started go on reporting ``received`` lines under it.
Invariant: all judgement is made here in Python; a driver only reports what its client did.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import attrs

COMMAND_SECONDS = 180.0
CONSUME_SECONDS = 180.0


class DriverError(Exception):
    """The driver ended, said that a command failed, or did not answer in time."""


@attrs.frozen
class Sent:
    """What a producer learned about one message (or one batch) that it sent."""

    index: int
    status: str
    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int
    body: str


@attrs.frozen
class Received:
    """One message as a consumer saw it; ``body`` is the text, or ``sha256:…`` where it is long."""

    consumer: str
    topic: str
    queue_id: int
    queue_offset: int
    body: str
    tags: str
    keys: str
    properties: Mapping[str, str]
    reconsume_times: int
    msg_id: str
    offset_msg_id: str
    physical_offset: int
    born_timestamp: int
    store_timestamp: int
    store_size: int


@attrs.define
class Call:
    """One command under way: its answers so far."""

    number: int
    line: str
    events: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    done: dict[str, Any] | None = None


@attrs.define
class Consumer:
    """A consumer that runs inside a driver."""

    driver: "Driver"
    call: Call

    def received(self) -> list[Received]:
        return self.driver.received(self.call)

    def wait(self, count: int, seconds: float = CONSUME_SECONDS) -> list[Received]:
        """Everything received, as soon as that many different messages are there."""

        def arrived() -> bool:
            # A body says which message it is; the same body twice is one message delivered twice.
            return len({each.body for each in self.received()}) >= count

        self.driver.wait_until(arrived, seconds, lambda: f"{len(self.received())} of {count} messages: {self.call.line}")
        return self.received()

    def wait_deliveries(self, count: int, seconds: float = CONSUME_SECONDS) -> list[Received]:
        """Everything received, as soon as that many deliveries were made, repeated ones counted."""
        self.driver.wait_until(
            lambda: len(self.received()) >= count,
            seconds,
            lambda: f"{len(self.received())} of {count} deliveries: {self.call.line}",
        )
        return self.received()

    def stop(self) -> list[Received]:
        """Shut the consumer down in its own orderly way (offsets committed); everything it ever received."""
        self.driver.run("stop", consumer=self.call.number)
        return self.received()


@attrs.define(eq=False)
class Driver:
    """One child process that speaks the protocol above."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    calls: dict[int, Call] = attrs.field(factory=dict[int, Call])
    changed: threading.Condition = attrs.field(factory=threading.Condition)
    ended: bool = False
    reader: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, name=f"reader of {self.name}", daemon=True)
        self.reader.start()

    @classmethod
    def start(cls, name: str, command: list[str], folder: Path, environment: Mapping[str, str]) -> Self:
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "driver.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
        return cls(name, process, log)

    def run(self, command: str, *, seconds: float = COMMAND_SECONDS, **arguments: object) -> list[dict[str, Any]]:
        """Give a command and wait for its end; its answers."""
        return self.finish(self.begin(command, **arguments), seconds)

    def begin(self, command: str, **arguments: object) -> Call:
        """Give a command and do not wait."""
        words = [command, *(f"{key}={quote(str(value), safe='')}" for key, value in arguments.items())]
        with self.changed:
            number = len(self.calls) + 1
            call = Call(number, " ".join(words))
            self.calls[number] = call
            stdin = self.process.stdin
            assert stdin is not None
            try:
                stdin.write(f"{number} {call.line}\n")
                stdin.flush()
            except OSError as error:
                raise DriverError(f"{self.name} takes no more commands: {self._story()}") from error
        return call

    def finish(self, call: Call, seconds: float = COMMAND_SECONDS) -> list[dict[str, Any]]:
        self.wait_until(lambda: call.done is not None, seconds, lambda: f"no end of: {call.line}")
        assert call.done is not None
        if not call.done["ok"]:
            raise DriverError(f"{self.name} failed: {call.line}\n{call.done['error']}\n{self._story()}")
        return list(call.events)

    def send(self, **arguments: object) -> list[Sent]:
        """Send messages; what the producer learned, in the order of sending."""
        events = self.finish(self.begin("send", **arguments))
        return sorted((_sent(event) for event in events if event["event"] == "sent"), key=lambda sent: sent.index)

    def read_all(self, topic: str) -> list[Received]:
        """Every message of every queue of the topic, by explicit pulls."""
        return [_received(event) for event in self.run("read_all", topic=topic) if event["event"] == "received"]

    def try_read_all(self, topic: str) -> tuple[list[Received], str]:
        """What can be read of the topic now, and why no more could."""
        call = self.begin("read_all", topic=topic)
        try:
            self.finish(call)
        except DriverError as error:
            return self.received(call), str(error)
        return self.received(call), ""

    @contextmanager
    def consuming(self, kind: str, **arguments: object) -> Generator[Consumer]:
        """A consumer, started; shut down at the end unless it already is."""
        call = self.begin("consume", kind=kind, **arguments)
        self.finish(call)
        consumer = Consumer(self, call)
        try:
            yield consumer
        finally:
            self.run("stop", consumer=call.number)

    def received(self, call: Call) -> list[Received]:
        with self.changed:
            return [_received(event) for event in call.events if event["event"] == "received"]

    def sent(self, call: Call) -> list[Sent]:
        with self.changed:
            return [_sent(event) for event in call.events if event["event"] == "sent"]

    def wait_until(self, condition: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                if self.ended:
                    raise DriverError(f"{self.name} ended: {complaint()}\n{self._story()}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DriverError(f"{self.name} waited {seconds:.0f} s: {complaint()}\n{self._story()}")
                self.changed.wait(left)

    def close(self) -> None:
        """End of input is the driver's sign to leave; one that does not is killed."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):
            stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        stdout.close()

    def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        for line in stdout:
            if not line.startswith("{"):
                continue  # a client's library may greet on standard output
            event = json.loads(line)
            with self.changed:
                call = self.calls[event["call"]]
                if event["event"] == "done":
                    call.done = event
                else:
                    call.events.append(event)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _story(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def _sent(event: dict[str, Any]) -> Sent:
    return Sent(**{name: event[name] for name in attrs.fields_dict(Sent)})


def _received(event: dict[str, Any]) -> Received:
    return Received(**{name: event[name] for name in attrs.fields_dict(Received)})


def bodies(received: Iterable[Received]) -> list[str]:
    """The bodies, sorted: equal lists mean the same messages, each the same number of times."""
    return sorted(each.body for each in received)


def expected(count: int, template: str = "message-{}") -> list[str]:
    """What ``bodies`` gives for the messages that a driver sends with this body."""
    return sorted(template.format(i) for i in range(count))


def wait_for_topic(driver: Driver, topic: str, count: int, seconds: float = CONSUME_SECONDS, since: int = 0) -> list[Received]:
    """Read a topic again and again until it exists and holds that many messages from the queue offset `since` on.

    An Apache broker puts messages into its queues after it has acknowledged them.
    """
    deadline = time.monotonic() + seconds
    while True:
        received, problem = driver.try_read_all(topic)
        received = [each for each in received if each.queue_offset >= since]
        if not problem and len(received) >= count:
            return received
        if time.monotonic() > deadline:
            raise DriverError(f"{topic} has {len(received)} messages instead of {count}: {problem}")
