"""A SYNC_MASTER and its slave as real processes on a virtual network.

Fifty kills are `python -m harness.processes.faults --mode sync_master`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from harness.processes.load import QUEUES, Load
from harness.processes.network import NetworkUnavailable
from harness.processes.pairs import (
    CLIENTS,
    MASTER,
    SLAVE,
    Pair,
    PairFaults,
    acknowledged_are_in_the_log,
    commitlog,
    running_pair,
)
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History

pytestmark = pytest.mark.slow
UNPROMISED = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)


@asynccontextmanager
async def pair_under_load(directory: Path) -> AsyncGenerator[tuple[Pair, Load, Channel]]:
    """A pair, and a connection from the clients' machine to its master."""
    load = Load(History(sync_flush=False), random.Random(4))
    try:
        async with running_pair(directory, {"flushDiskType": "ASYNC_FLUSH"}) as pair:
            load.network = pair.clients.network
            async with connected(pair.master.address, network=load.network) as channel:
                yield pair, load, channel
    except NetworkUnavailable as error:
        pytest.skip(str(error))


async def send(load: Load, channel: Channel) -> RemotingCommand:
    return await load.send(channel, load.numbered(load.rng.choice(QUEUES)))


async def send_until(load: Load, channel: Channel, code: ResponseCode) -> None:
    """Send one message after the other until one is answered with `code`."""
    with trio.fail_after(40):
        while (await send(load, channel)).code != code:  # noqa: ASYNC110 - only asking tells
            await trio.sleep(0.05)


async def test_what_was_answered_put_ok_is_on_the_slave_whatever_happens(tmp_path: Path) -> None:
    """Drawn faults and kills of both; afterwards the logs are equal, byte for byte."""
    rng = random.Random(6)
    faults = PairFaults(
        tmp_path, True, rng, lambda _: None, faults_per_life_max=2, fault_seconds=(0.05, 0.5), acknowledged_min=30
    )
    try:
        outcome = await faults.run(2)
    except NetworkUnavailable as error:
        pytest.skip(str(error))

    assert outcome.violations == []
    assert outcome.faults["kills"] >= 2
    assert sum(put.acknowledged for put in outcome.history.puts) >= 30, outcome.summary()


@pytest.mark.parametrize("both_ways", [True, False], ids=["both ways", "to the master"])
async def test_a_slave_that_is_cut_off_costs_the_promise_and_not_the_message(tmp_path: Path, both_ways: bool) -> None:
    """The master says so until the slave is back; what it took meanwhile reaches the slave then."""
    async with pair_under_load(tmp_path) as (pair, load, channel):
        await send_until(load, channel, ResponseCode.SUCCESS)
        if both_ways:
            await pair.virtual.part([MASTER], [SLAVE])
        else:
            await pair.virtual.cut(SLAVE, MASTER)

        assert (await send(load, channel)).code in UNPROMISED
        await send_until(load, channel, ResponseCode.SLAVE_NOT_AVAILABLE)
        await pair.virtual.heal()
        await send_until(load, channel, ResponseCode.SUCCESS)

        assert await pair.settle()
        assert [await pair.master.stop(), await pair.slave.stop()] == [0, 0]
        assert commitlog(pair.master) == commitlog(pair.slave)


async def test_an_answer_that_was_cut_off_comes_when_the_cut_is_healed(tmp_path: Path) -> None:
    """On the connection that was half-open meanwhile, with the offset that the message was given once."""
    async with pair_under_load(tmp_path) as (pair, load, channel):
        await send_until(load, channel, ResponseCode.SUCCESS)
        await pair.virtual.cut(MASTER, CLIENTS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_until, load, channel, ResponseCode.SUCCESS)
            await trio.sleep(0.5)
            assert not load.history.puts[-1].acknowledged
            await pair.virtual.heal()
        assert load.history.puts[-1].acknowledged
        snapshot = await load.look(pair.master.address)
    assert check_history(attrs.evolve(load.history, snapshots=[snapshot])) == []


async def test_a_slave_that_dies_unseen_counts_once_when_it_is_back(tmp_path: Path) -> None:
    """Its end never reaches the master, whose connection is half-open; the slave comes back by a new one."""
    async with pair_under_load(tmp_path) as (pair, load, channel):
        await send_until(load, channel, ResponseCode.SUCCESS)
        await pair.virtual.part([MASTER], [SLAVE])
        await pair.slave.kill()
        assert (await send(load, channel)).code in UNPROMISED

        await pair.virtual.heal()
        await pair.nursery.start(pair.slave.live)
        await send_until(load, channel, ResponseCode.SUCCESS)
        assert await pair.settle()


async def test_the_harness_notices_what_a_slave_has_lost(tmp_path: Path) -> None:
    """A slave whose store is swapped for an older copy lacks a message that was answered PUT_OK, and the checkers say so."""
    async with pair_under_load(tmp_path) as (pair, load, channel):
        await send_until(load, channel, ResponseCode.SUCCESS)
        await pair.slave.stop()
        store = pair.slave.store
        shutil.copytree(store, store.with_name("copy"))
        await pair.nursery.start(pair.slave.live)
        await send_until(load, channel, ResponseCode.SUCCESS)
        await pair.master.kill()
        load.history.ends.append(End.KILL)
        await pair.slave.kill()
        assert list(acknowledged_are_in_the_log(load.history, commitlog(pair.slave))) == []

        shutil.rmtree(store)
        store.with_name("copy").rename(store)
        lost = list(acknowledged_are_in_the_log(load.history, commitlog(pair.slave)))

    assert len(lost) == 1
    assert f"message {load.history.puts[-1].number}," in lost[0]
