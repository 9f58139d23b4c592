from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from ledgermq import ConsumeFrom, Message, MessageQueue, open_consumer, open_producer
from ledgermq.blocking import open_consumer as open_blocking_consumer
from ledgermq.blocking import open_producer as open_blocking_producer
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.message.units import QueueId
from ledgermq.remoting import tls
from ledgermq.testing.embedded import Embedded, StartedEmbedded, open_embedded, open_virtual, start_embedded
from ledgermq.testing.pytest_plugin import ledgermq_broker, ledgermq_cluster
from ledgermq.testing.sim.scheduler import seeded_run

__all__ = ["ledgermq_broker", "ledgermq_cluster"]


@pytest.mark.parametrize("mode", ["local", "controller"])
async def test_the_settings_of_tls_of_the_machine_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A fixture does the same on each machine."""
    (tmp_path / "tls.properties").write_text("tls.server.mode=enforcing\n")
    monkeypatch.setattr(tls, "CONFIG_FILE", str(tmp_path / "tls.properties"))
    with trio.fail_after(60):
        async with open_embedded(mode=mode) as cluster, open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
            assert (await producer.send(Message("T", b"x"))).queue_offset == 0


def test_a_plain_test_sends_to_it(ledgermq_broker: Embedded) -> None:
    with open_blocking_producer(ledgermq_broker.namesrv) as producer:
        result = producer.send(Message("T", b"hello"))

    assert result.queue_offset == 0


async def test_a_trio_test_sends_and_consumes(ledgermq_broker: Embedded) -> None:
    with trio.fail_after(30):
        async with open_producer(ledgermq_broker.namesrv, send_timeout_seconds=60) as producer:
            await producer.send(Message("T", b"hello"))
        async with open_consumer(ledgermq_broker.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST) as consumer:
            async for message in consumer:
                assert message.body == b"hello"
                break


def test_an_asyncio_test_reaches_it(ledgermq_broker: Embedded) -> None:
    async def main() -> None:
        host, _, port = ledgermq_broker.addresses[0].partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


def test_a_master_and_a_slave(ledgermq_cluster: Callable[..., Embedded]) -> None:
    cluster = ledgermq_cluster(mode="ha", nodes=2)

    assert len(cluster.addresses) == 2


def test_a_kept_store_is_there_again(tmp_path: Path) -> None:
    queue = MessageQueue("T", "broker-a", QueueId(0))
    for expected in (0, 1):
        with start_embedded(store=str(tmp_path)) as embedded, open_blocking_producer(embedded.namesrv) as producer:
            assert producer.send(Message("T", b"x"), queue=queue).queue_offset == expected


def test_a_group_survives_the_kill_of_its_master(ledgermq_cluster: Callable[..., StartedEmbedded]) -> None:
    """The producer goes on with the next master; the killed broker comes back on its store and follows."""
    cluster = ledgermq_cluster(mode="dledger", nodes=3)
    with open_blocking_producer(cluster.namesrv) as producer:
        sent = [producer.send(Message("T", b"%d" % number)).message_id for number in range(5)]
        killed = cluster.master()
        cluster.kill(killed)
        sent += [producer.send(Message("T", b"%d" % number)).message_id for number in range(5, 10)]
        assert cluster.master() != killed

        cluster.start(killed)
        cluster.stop(cluster.master())
        sent += [producer.send(Message("T", b"%d" % number)).message_id for number in range(10, 15)]
    with open_blocking_consumer(cluster.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST) as consumer:
        received: list[bytes] = []
        while len(received) < 15:
            with consumer.take(32, 5.0) as batch:
                received += [message.body for message in batch]
    assert sorted(received, key=int) == [b"%d" % number for number in range(15)]
    assert len(set(sent)) == 15


def test_a_broker_that_is_killed_closes_nothing_in_order(tmp_path: Path) -> None:
    """RocketMQ's file `abort` says so to the next start, which recovers what had been written."""
    with start_embedded(store=str(tmp_path)) as embedded, open_blocking_producer(embedded.namesrv) as producer:
        (address,) = embedded.addresses
        queue = MessageQueue("T", "broker-a", QueueId(0))
        producer.send(Message("T", b"x"), queue=queue)
        embedded.stop(address)
        assert not (tmp_path / "0" / "abort").exists()
        embedded.start(address)
        producer.send(Message("T", b"y"), queue=queue)

        embedded.kill(address)

        assert (tmp_path / "0" / "abort").exists()
        embedded.start(address)
        assert producer.send(Message("T", b"z"), queue=queue).queue_offset == 2


def test_what_is_killed_twice_or_unknown_is_said(ledgermq_broker: StartedEmbedded) -> None:
    (address,) = ledgermq_broker.addresses
    ledgermq_broker.kill(address)
    ledgermq_broker.kill(address)

    with pytest.raises(ValueError, match=f"the brokers of this cluster are {address}"):
        ledgermq_broker.start("10.0.0.1:1")


async def test_a_kill_that_is_cancelled_has_killed() -> None:
    with trio.fail_after(60):
        async with open_embedded() as cluster, open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
            (address,) = cluster.addresses
            with trio.CancelScope() as scope:
                scope.cancel()
                await cluster.kill(address)

            await cluster.start(address)

            assert (await producer.send(Message("T", b"x"))).queue_offset == 0


def test_a_start_beside_a_stop_or_another_start_loses_no_broker() -> None:
    async def main() -> None:
        async with open_virtual(seed=1) as cluster:
            (address,) = cluster.addresses
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.stop, address)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(cluster.start, address)
            assert len(cluster.brokers) == 1

            await cluster.stop(address)
            assert not cluster.brokers
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.start, address)
                nursery.start_soon(cluster.start, address)
            assert len(cluster.brokers) == 1

    seeded_run(main, seed=1)


@pytest.mark.parametrize(("mode", "nodes", "killed"), [("local", 1, 1), ("ha", 2, 1), ("dledger", 3, 2), ("dledger", 1, 1)])
def test_a_master_that_cannot_come_is_not_waited_for(mode: str, nodes: int, killed: int) -> None:
    async def main() -> None:
        with trio.fail_after(3600):
            async with open_virtual(seed=1, mode=mode, nodes=nodes) as cluster:
                first = await cluster.master()
                for address in sorted(cluster.addresses, key=lambda each: each != first)[:killed]:
                    await cluster.kill(address)

                with pytest.raises(RuntimeError, match="no broker that runs can become the master"):
                    await cluster.master()

                await cluster.start(first)
                assert await cluster.master()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seed", [20, 29, 111])
def test_every_node_of_a_new_group_may_vote(seed: int) -> None:
    """Else nobody is elected when the others are killed and one of them comes back."""

    async def main() -> None:
        async with open_virtual(seed=1, mode="dledger", nodes=3) as cluster:
            nodes = [broker.node for broker in cluster.brokers]
            assert [node.may_vote for node in nodes if isinstance(node, DLedgerNode)] == [True] * 3

    seeded_run(main, seed=seed)


def test_a_group_on_virtual_time_survives_the_kill_of_its_master() -> None:
    """Each broker has a machine of its own; the same seed gives the same times."""

    async def main() -> tuple[float, list[bytes]]:
        async with open_virtual(seed=3, mode="dledger", nodes=3) as embedded:
            received: list[bytes] = []
            async with open_producer(embedded.namesrv, world=embedded.world) as producer:
                await producer.send(Message("T", b"before"))
                killed = await embedded.master()
                await embedded.kill(killed)
                started = trio.current_time()
                await producer.send(Message("T", b"after"))
                gap = trio.current_time() - started
                assert await embedded.master() != killed
                await embedded.start(killed)
            async with open_consumer(
                embedded.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, world=embedded.world
            ) as consumer:
                while len(received) < 2:
                    async with consumer.take(32, 5.0) as batch:
                        received += [message.body for message in batch]
            return gap, received

    gap, received = seeded_run(main, seed=3)

    assert sorted(received) == [b"after", b"before"]
    assert gap < 1.0


def test_it_is_ready_in_well_under_half_a_second_of_processor_time(cpu_seconds: Callable[[], float]) -> None:
    with start_embedded():
        pass
    started = cpu_seconds()

    with start_embedded():
        ready = cpu_seconds() - started

    assert ready < 0.5


def test_what_hinders_the_start_is_raised_to_the_caller() -> None:
    with pytest.raises(ValueError, match="mode is one of"), start_embedded(mode="cloud"):
        pass
    with pytest.raises(ValueError, match=r"nodes is at least 1 \(got 0\)"), start_embedded(nodes=0):
        pass


def test_a_group_that_does_not_come_together_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with trio.fail_after(3600):
            async with open_virtual(mode="dledger", nodes=3):
                pass

    monkeypatch.setattr("ledgermq.testing.embedded._complete", Mock(return_value=False))
    with pytest.raises(RuntimeError, match="did not elect a master that all follow within 60 s"):
        seeded_run(main, seed=1)


@pytest.mark.parametrize("mode", ["local", "controller"])
def test_what_fails_in_the_block_is_raised_as_it_is(mode: str) -> None:
    """Not in groups of exceptions of the servers around it, so that `pytest.raises` finds it."""

    async def main() -> None:
        async with open_virtual(mode=mode):
            raise LookupError("k")

    with pytest.raises(LookupError, match="k"):
        seeded_run(main, seed=1)


async def test_it_also_lives_in_the_loop_of_the_test() -> None:
    async with open_embedded() as embedded, open_producer(embedded.namesrv, send_timeout_seconds=60) as producer:
        assert (await producer.send(Message("T", b"x"))).queue_offset == 0


def test_half_an_hour_of_delay_passes_at_once() -> None:
    async def main() -> float:
        async with open_virtual() as embedded:
            started = trio.current_time()
            async with open_producer(embedded.namesrv, world=embedded.world) as producer:
                await producer.send(Message("T", b"late", delay_level=16))
            async with open_consumer(
                embedded.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, world=embedded.world
            ) as consumer:
                async for message in consumer:
                    assert message.body == b"late"
                    break
            return trio.current_time() - started

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(1800, abs=60)


def test_the_plugin_serves_the_tests_of_applications(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(
        textwrap.dedent("""
        from ledgermq import Message
        from ledgermq.blocking import open_producer

        def test_sends(ledgermq_broker):
            with open_producer(ledgermq_broker.namesrv, send_timeout_seconds=60) as producer:
                producer.send(Message("T", b"x"))

        def test_two_clusters(ledgermq_cluster):
            assert ledgermq_cluster().namesrv != ledgermq_cluster(nodes=2).namesrv
        """)
    )
    plugin = ["-p", "no:ledgermq", "-p", "ledgermq.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, str(tmp_path)]

    out = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)}
    )

    assert out.returncode == 0, out.stdout + out.stderr
    assert "2 passed" in out.stdout
