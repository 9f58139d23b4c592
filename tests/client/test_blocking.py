"""Blocking clients: several threads at once, Ctrl-C anywhere, forks, and programs that end without closing them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest

from ledgermq import blocking
from ledgermq.client.blocking import BlockingConsumer, BlockingMessage
from ledgermq.client.consumer_options import AckMode
from ledgermq.client.errors import ClientError, Closed
from ledgermq.client.received import PulledAnswer, ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import Embedded, start_embedded
from ledgermq.testing.logs import capture_logs

from .test_received import Recorder

PATIENCE_SECONDS = 60
FIRST = ConsumeFrom.FIRST


@pytest.fixture
def cluster() -> Generator[Embedded]:
    with start_embedded() as embedded:
        yield embedded


def fill(cluster: Embedded, count: int) -> None:
    with blocking.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
        producer.send_many([Message("t", b"%d" % number) for number in range(count)])


def in_threads(count: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def lag(cluster: Embedded, group: str) -> int:
    with blocking.open_admin(cluster.namesrv) as admin:
        return sum(position.lag for position in admin.call(lambda each: each.group_stats(group, "t")).values())


@pytest.mark.parametrize("mode", ["auto", "explicit"])
@pytest.mark.parametrize("orderly", [False, True])
def test_several_threads_iterate_over_one_consumer(cluster: Embedded, mode: str, orderly: bool) -> None:
    """Each message is seen once, in the order of its queue if that is asked for, and all are acknowledged in the end."""
    fill(cluster, 2000)
    seen: list[tuple[int, int]] = []
    busy: set[int] = set()
    left = threading.Semaphore(2000)

    with blocking.open_consumer(
        cluster.namesrv,
        "g",
        "t",
        ack=mode,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        orderly=orderly,
        consume_from=FIRST,
    ) as consumer:

        def work() -> None:
            if not left.acquire(blocking=False):
                return
            for message in consumer:
                queue_id = message.queue.queue_id
                if orderly:
                    assert queue_id not in busy
                    busy.add(queue_id)
                seen.append((queue_id, message.queue_offset))
                busy.discard(queue_id)
                message.ack()
                if not left.acquire(blocking=False):
                    return

        in_threads(4, work)
        consumer.commit()

    assert len(seen) == len(set(seen)) == 2000
    if orderly:
        by_queue = {queue_id: [offset for queue, offset in seen if queue == queue_id] for queue_id in range(8)}
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())
    assert lag(cluster, "g") == 0


def test_no_thread_acknowledges_for_another(cluster: Embedded) -> None:
    """A thread that works for long keeps its message, however much another one takes and acknowledges meanwhile."""
    fill(cluster, 20)
    with blocking.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:
        kept: list[BlockingMessage | None] = []
        in_threads(1, lambda: kept.append(consumer.get_one(PATIENCE_SECONDS)))
        taken = 1
        while taken < 20:
            with consumer.take(5, PATIENCE_SECONDS) as messages:
                taken += len(messages)
        consumer.commit()
        assert lag(cluster, "g") > 0
        for message in kept:
            assert message is not None
            message.ack()
        assert sum(queue.position for queue in consumer.progress().values()) == 20
        consumer.commit()
        assert lag(cluster, "g") == 0


def test_a_call_that_a_cancelled_task_has_abandoned_gives_its_message_back(cluster: Embedded) -> None:
    """`asyncio.to_thread` cannot stop the thread, so the message comes to nobody."""

    async def abandon() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(consumer.get_one), 0.1)
        await asyncio.to_thread(fill, cluster, 1)

    with blocking.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:
        asyncio.run(abandon())  # at its end it waits for the thread
        gc.collect()
        assert consumer.host.run(dropped_in, consumer) == 1
        consumer.commit()
        assert lag(cluster, "g") == 1


async def dropped_in(consumer: BlockingConsumer) -> int:
    """How many messages the consumer is about to take back."""
    return sum(len(source.assigned.dropped()) for source in consumer.host.client.sources.values())


def test_many_sends_say_what_became_of_each(cluster: Embedded) -> None:
    """A result or an error stands at the place of its message, and one that cannot be sent does not take the others along."""
    messages = [Message("t", b"a"), Message("not a topic", b"b"), Message("t", b"c"), Message("t", b"d" * (5 << 20))]
    with blocking.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
        outcomes = producer.send_many(messages)

    assert [type(outcome).__name__ for outcome in outcomes] == [
        "SendResult",
        "InvalidArgument",
        "SendResult",
        "MessageTooLarge",
    ]


def test_offsets_are_cloned_of_committed_queues_alone(cluster: Embedded) -> None:
    """A queue in which the source has committed nothing stays without an offset, and the target begins there as a new group."""
    with (
        blocking.open_admin(cluster.namesrv) as admin,
        blocking.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer,
    ):
        admin.call(lambda each: each.create_topic("t", queues=2))
        first, second = producer.queues("t")
        for queue in (first, second):
            producer.send(Message("t", b"x"), queue=queue)
        admin.call(lambda each: each.set_offset("source", first, 1))

        admin.call(lambda each: each.clone_offsets("source", "target", "t"))

        found = [admin.call(lambda each, queue=queue: each.offset_of("target", queue)) for queue in (first, second)]
    assert found == [1, None]


def test_every_wait_raises_when_the_client_closes(cluster: Embedded) -> None:
    """A thread that waits for messages, and one that comes later."""
    raised: list[type[BaseException]] = []
    with blocking.open_consumer(cluster.namesrv, "g", "t") as consumer:

        def wait() -> None:
            try:
                consumer.get_one()
            except ClientError as error:
                raised.append(type(error))

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
    thread.join(PATIENCE_SECONDS)

    assert raised == [Closed]
    with pytest.raises(Closed):
        consumer.get_one()
    with pytest.raises(Closed):
        consumer.commit()


def run_program(cluster: Embedded, program: str) -> str:
    """Run a program of its own with the name server's address, which must end soon; returns what it printed."""
    head = f"""
import os, signal, sys, threading, time
from ledgermq import ConsumeFrom, Message, OtherProcess, blocking
NAMESRV = {cluster.namesrv!r}
FIRST = ConsumeFrom.FIRST
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def patient_producer():
    return blocking.open_producer(NAMESRV, send_timeout_seconds=60)
"""
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", ["auto", "explicit"])
def test_a_closed_consumer_gives_out_nothing_that_it_fetched_before(cluster: Embedded, mode: AckMode) -> None:
    """Other members get it, so a thread that is still in its loop gets an error."""
    fill(cluster, 20)
    with blocking.open_consumer(cluster.namesrv, "g", "t", ack=mode, consume_from=FIRST) as consumer:
        messages = iter(consumer)
        next(messages)

    with pytest.raises(Closed):
        next(messages)
    with pytest.raises(Closed):
        consumer.get_one()


@attrs.define(eq=False)
class InterruptedHost:
    """The client of a thread that is interrupted when what it asked for has come."""

    arrived: list[ReceivedMessage]
    stopped: bool = False
    options: SimpleNamespace = attrs.field(factory=lambda: SimpleNamespace(ack="auto", orderly=False))

    @property
    def client(self) -> InterruptedHost:
        return self

    async def receive(self, _messages_max: int, _timeout_seconds: float) -> list[ReceivedMessage]:
        return self.arrived

    def ask(self, _question: object, undo: Callable[[list[ReceivedMessage]], None]) -> list[ReceivedMessage]:
        undo(self.arrived)
        raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["get_many", "iterate"])
def test_messages_that_an_interrupted_thread_has_not_seen_come_again(way: str) -> None:
    """The last one is put back first, so that they come again in their order; none is acknowledged."""
    origin, answer = Recorder(), PulledAnswer(30)
    host = InterruptedHost([ReceivedMessage(origin, b"", 0, 10, offset, answer) for offset in range(3)])
    consumer = BlockingConsumer(cast("Any", host))

    with pytest.raises(KeyboardInterrupt):
        consumer.get_many(3) if way == "get_many" else next(iter(consumer))

    assert (origin.retried, origin.acked) == ([(2, 0), (1, 0), (0, 0)], [])


def test_an_interrupted_question_acknowledges_nothing(cluster: Embedded) -> None:
    """Ctrl-C while a program waits for messages: those that come then are seen by its next question."""
    printed = run_program(
        cluster,
        """
def interrupt_a_wait(signum, frame):
    functions = set()
    while frame is not None:
        functions.add(frame.f_code.co_name)
        frame = frame.f_back
    if {"get_many", "wait"} <= functions:  # behind the wait the messages are the program's, which may lose them
        raise KeyboardInterrupt

def interrupt_until(ended):
    time.sleep(0.1)
    while not ended.is_set():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)

signal.signal(signal.SIGINT, interrupt_a_wait)
with patient_producer() as producer, blocking.open_consumer(NAMESRV, "g", "t", consume_from=FIRST) as consumer:
    producer.queues("t")
    for number in range(20):
        ended = threading.Event()
        interrupting = threading.Thread(target=interrupt_until, args=(ended,))
        interrupting.start()
        threading.Timer(0.09 + number * 0.001, lambda: producer.send(Message("t", b"%d" % number))).start()
        seen = []
        try:
            while True:
                seen += [int(message.body) for message in consumer.get_many()]
        except KeyboardInterrupt:
            ended.set()
        interrupting.join()
        while number not in seen:
            seen += [int(message.body) for message in consumer.get_many()]
        assert seen.count(number) == len(seen) == 1, seen
print("done")
""",
    )
    assert printed == "done\n"


def test_opening_can_be_interrupted(cluster: Embedded) -> None:
    """Ctrl-C while a client waits for a name server that does not answer: the program goes on at once, and ends."""
    printed = run_program(
        cluster,
        """
import trio
from ledgermq.client.name_servers import NameServers

async def never(*_):
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    await trio.sleep_forever()

NameServers.ask = never
try:
    with blocking.open_consumer(NAMESRV, "g", "t"):
        pass
except KeyboardInterrupt:
    print("interrupted")
""",
    )
    assert printed == "interrupted\n"


def test_a_program_ends_with_clients_open(cluster: Embedded) -> None:
    """A client at module level does not hang the end of the interpreter, and what was acknowledged is committed."""
    fill(cluster, 10)
    printed = run_program(
        cluster,
        """
from contextlib import ExitStack
stack = ExitStack()
producer = stack.enter_context(patient_producer())
consumer = stack.enter_context(blocking.open_consumer(NAMESRV, "g", "t", consume_from=FIRST))
taken = 0
while taken < 10:
    for message in consumer.get_many(100):
        message.ack()
        taken += 1
print(producer.send(Message("u", b"")).status.name)
""",
    )
    assert printed == "SEND_OK\n"
    assert lag(cluster, "g") == 0


def test_a_handler_may_fail_after_it_has_acknowledged(cluster: Embedded) -> None:
    """Its message does not come again, also if the client's thread is too busy to note at once that it is done."""
    fill(cluster, 3)
    left = 3
    with blocking.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:

        def handle(message: BlockingMessage) -> None:
            nonlocal left
            left -= 1
            if not left:
                consumer.stop()
            consumer.host.soon(lambda: time.sleep(0.2))
            message.ack()
            raise ValueError("scripted")

        consumer.run(handle)
        assert (consumer.statistics().acknowledged, consumer.statistics().failed) == (3, 0)


def test_an_exit_in_a_handler_ends_the_service(cluster: Embedded) -> None:
    """Although other handlers are at work; its message comes again, and no thread goes on behind its back."""
    fill(cluster, 20)
    at_work, may_end = threading.Event(), threading.Event()
    ended: list[int] = []

    def handle(message: BlockingMessage) -> None:
        if at_work.is_set():
            raise SystemExit(7)
        at_work.set()
        may_end.wait(PATIENCE_SECONDS)
        ended.append(message.queue_offset)

    with blocking.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:
        with pytest.raises(SystemExit, match="7"):
            consumer.run(handle, concurrency=2)
        assert consumer.stopped
        assert ended == []
        consumer.commit()  # so the client has taken back what is in its queue of calls
        assert consumer.statistics().failed == 2
        may_end.set()


@pytest.mark.parametrize("ending", ["handlers end", "time limit", "second signal"])
def test_a_signal_ends_a_service(cluster: Embedded, ending: str) -> None:
    """Handlers finish what they have; those that take too long are not waited for, and their messages alone come again."""
    fill(cluster, 200)
    printed = run_program(
        cluster,
        f"""
ending, begun, done, failed = {ending!r}, [], [], []
before = signal.getsignal(signal.SIGTERM)

def handle(message):
    number = int(message.body)
    begun.append(number)
    if number == 3 and not failed:
        failed.append(number)
        raise ValueError("scripted")
    last = begun[19:20] == [number]
    if last:
        os.kill(os.getpid(), signal.SIGTERM)
    while len(begun) >= 20 and not consumer.stopped:
        time.sleep(0.01)
    if last:
        if ending == "second signal":
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1 if ending == "handlers end" else 50)
    time.sleep(0.01)
    done.append(number)

with blocking.open_consumer(NAMESRV, "g", "t", consume_from=FIRST) as consumer:
    consumer.run(handle, concurrency=4, stop_seconds=0.2 if ending == "time limit" else 30)
    print(20 <= len(begun) < 40, len(begun) > len(done) + len(failed), signal.getsignal(signal.SIGTERM) is before)
    consumer.commit()
with blocking.open_admin(NAMESRV) as admin:
    positions = admin.call(lambda each: each.group_stats("g", "t"))
    print(sum(position.lag for position in positions.values()) == 200 - len(begun))
""",
    )
    assert printed == f"True {ending != 'handlers end'} True\nTrue\n"


def test_a_forked_child_is_refused(cluster: Embedded) -> None:
    """By name, at once, for every use; the parent's client is not touched by the child's end."""
    printed = run_program(
        cluster,
        """
with patient_producer() as producer, blocking.open_consumer(NAMESRV, "g", "t", consume_from=FIRST) as consumer:
    producer.send(Message("t", b"x"))
    message = consumer.get_one(10)
    child = os.fork()
    if not child:
        refused = 0
        for use in (lambda: producer.send(Message("t", b"y")), consumer.get_one, message.ack, consumer.commit):
            try:
                use()
            except OtherProcess as error:
                refused += "forked" in str(error)
        sys.exit(refused)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), producer.send(Message("t", b"z")).status.name)
""",
    )
    assert printed == "4 SEND_OK\n"


def test_queues_are_paused_resumed_and_moved(cluster: Embedded) -> None:
    """From the thread that reads, and by every way of moving."""
    fill(cluster, 40)
    with blocking.open_consumer(cluster.namesrv, "pausing", "t", consume_from=FIRST) as consumer:
        consumer.pause()
        assert consumer.get_many(100, 0.2) == []
        assert consumer.paused == consumer.queues
        for queue in consumer.queues:
            consumer.seek_to_end(queue)
        consumer.resume()
        assert consumer.get_many(100, 0.5) == []
        for queue in consumer.queues:
            consumer.seek_to_time(queue, 0) if queue.queue_id % 2 else consumer.seek_to_beginning(queue)
        seen: set[bytes] = set()
        while len(seen) < 40:
            with consumer.take() as messages:
                seen |= {message.body for message in messages}
    assert lag(cluster, "pausing") == 0


def test_a_callback_may_block_its_thread(cluster: Embedded) -> None:
    """The client goes on meanwhile; the end of the callback is waited for."""
    fill(cluster, 4)
    events: list[str] = []

    def assigned(_: object) -> None:
        time.sleep(0.3)
        events.append(threading.current_thread().name)

    with blocking.open_consumer(
        cluster.namesrv, "told", "t", consume_from=FIRST, on_assigned=assigned, on_revoked=lambda _: events.append("revoked")
    ):
        assert events
        assert events[0] not in ("ledgermq-client", "MainThread")
    assert events[-1] == "revoked"


def test_an_exit_in_a_callback_is_a_failure_of_it(cluster: Embedded) -> None:
    """Nobody calls it, so it is logged, and the client goes on; in plain threads an exit is that of the thread, too."""
    fill(cluster, 4)

    def leave(_: object) -> None:
        raise SystemExit

    with (
        capture_logs() as events,
        blocking.open_consumer(
            cluster.namesrv, "left", "t", consume_from=FIRST, on_assigned=leave, on_revoked=leave
        ) as consumer,
    ):
        seen = 0
        while seen < 4:
            with consumer.take() as messages:
                seen += len(messages)
    failed = [event["callback"] for event in events if event["event"] == "rebalance_callback_failed"]
    assert set(failed) == {"on_assigned", "on_revoked"}


def test_a_closed_consumer_is_not_healthy(cluster: Embedded) -> None:
    with blocking.open_consumer(cluster.namesrv, "g", "t") as consumer:
        assert consumer.healthy()
    assert consumer.healthy().problems == ("the client is closed",)
