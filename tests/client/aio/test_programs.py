"""Whole programs on asyncio: Ctrl-C, forks, and an end with clients open."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from ledgermq import aio
from ledgermq.testing.embedded import Embedded

PATIENCE_SECONDS = 60


def run_program(cluster: Embedded, program: str) -> str:
    """Run a program of its own with the name server's address, which must end soon; returns what it printed."""
    head = f"""
import asyncio, os, signal, sys, threading, time
from ledgermq import ConsumeFrom, Message, OtherProcess, aio
NAMESRV = {cluster.namesrv!r}
FIRST = ConsumeFrom.FIRST
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def patient_producer():
    return aio.open_producer(NAMESRV, send_timeout_seconds=60)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def committed(cluster: Embedded, topic: str) -> int:
    """How many messages of a topic its group has committed."""
    async with aio.open_admin(cluster.namesrv) as admin:
        return sum(position.consumer_offset for position in (await admin.group_stats(topic, topic)).values())


def test_ctrl_c_closes_in_order(cluster: Embedded, topic: str) -> None:
    """`asyncio.run` cancels the program, and what it has acknowledged is committed; a second Ctrl-C changes nothing of it."""
    printed = run_program(
        cluster,
        f"""
async def main():
    async with patient_producer() as producer, aio.open_consumer(NAMESRV, {topic!r}, {topic!r}, consume_from=FIRST) as consumer:
        await producer.send(Message({topic!r}, b"x"))
        message = await consumer.get_one()
        await message.ack()
        threading.Timer(0.1, lambda: (os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGINT))).start()
        await asyncio.sleep(50)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
""",
    )
    assert printed == "interrupted 1\n"
    assert asyncio.run(committed(cluster, topic)) == 1


def test_a_signal_ends_all_consumers(cluster: Embedded, topic: str) -> None:
    """Each `run` of a process ends, and not only the one that began last; then the program is as it was."""
    printed = run_program(
        cluster,
        f"""
async def main():
    async with (
        aio.open_consumer(NAMESRV, {topic!r}, {topic!r}) as first,
        aio.open_consumer(NAMESRV, {topic!r} + "-2", {topic!r}) as second,
    ):
        before = [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)]
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(first.run(print))
            group.create_task(second.run(print))
        print(before == [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)])
asyncio.run(main())
""",
    )
    assert printed == "True\n"


def test_a_forked_child_is_refused(cluster: Embedded, topic: str) -> None:
    """By name, at once, for every use; the parent's client is not touched by the child's end."""
    printed = run_program(
        cluster,
        f"""
async def main():
    async with patient_producer() as producer, aio.open_consumer(NAMESRV, {topic!r}, {topic!r}, consume_from=FIRST) as consumer:
        await producer.send_batch([Message({topic!r}, b"x"), Message({topic!r}, b"y")])
        loop = aiter(consumer)
        message = await anext(loop)  # the second message has crossed to the event loop, too
        assert consumer.fetched
        child = os.fork()
        if not child:
            refused = 0
            for use in (
                lambda: producer.send(Message({topic!r}, b"y")),
                consumer.get_one,
                lambda: anext(loop),
                message.ack,
                consumer.commit,
                lambda: consumer.process(print),
                lambda: consumer.run(print),
            ):
                try:
                    await use()
                except OtherProcess as error:
                    refused += "forked" in str(error)
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), (await producer.send(Message({topic!r}, b"z"))).status.name)
asyncio.run(main())
""",
    )
    assert printed == "7 SEND_OK\n"


def test_a_loop_that_ends_with_a_client_open_does_not_hang(cluster: Embedded, topic: str) -> None:
    """The event loop is closed, and the client's thread must notice that nobody waits for its answers."""
    printed = run_program(
        cluster,
        f"""
import gc, warnings
warnings.simplefilter("ignore", ResourceWarning)
async def main():
    global producer
    opening = patient_producer()
    producer = await opening.__aenter__()
    await producer.send(Message({topic!r}, b"x"))
    task = asyncio.create_task(producer.send(Message({topic!r}, b"y")))
    await asyncio.sleep(0)
asyncio.run(main())
print("ended")
""",
    )
    assert printed == "ended\n"
