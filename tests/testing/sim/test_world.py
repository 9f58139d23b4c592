"""Simulated machines: disks of their own, one network, and what kills and power cuts leave."""

from __future__ import annotations

import random

import trio

from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine, sim_machines
from ledgermq.world.network import Address
from ledgermq.world.real import World


def test_machines_of_one_seed_share_a_network_and_no_disk() -> None:
    """A connection leads from one to the other; a file is where it was written."""

    async def main() -> str:
        first, second = sim_machines(1, 2)
        first.world().disk.open("a", create_size=1).close()
        assert not second.world().disk.exists("a")
        network = second.world().network
        listeners = await network.open_listeners(second.host, 0)
        stream = await first.world().network.open_stream(Address(second.host, network.listener_port(listeners[0])))
        return stream.peer.host

    assert seeded_run(main, seed=1) == "10.0.0.2"


def test_a_kill_leaves_what_was_written_and_a_power_cut_what_was_synced() -> None:
    async def main() -> list[bytes]:
        found: list[bytes] = []
        for machine in sim_machines(1, 2):
            disk = machine.disk
            file = disk.open("a", create_size=4)
            file.write(b"once", 0)
            file.sync()
            disk.sync_directory("")
            file.write(b"more", 0)
            if not found:
                machine.kill()
            else:
                machine.disk = disk.power_cut(2)
            found.append(machine.disk.open("a").read(0, 4))
        return found

    killed, cut = seeded_run(main, seed=1)
    assert killed == b"more"
    assert cut in (b"once", b"more")


def test_secrets_come_from_the_seed() -> None:
    """Those of other machines and of other processes differ."""

    def secrets_of(seed: int) -> list[int]:
        return [machine.world().secrets.getrandbits(64) for machine in sim_machines(seed, 2) for _ in range(2)]

    assert secrets_of(1) == secrets_of(1)
    assert len({*secrets_of(1), *secrets_of(2)}) == 8


def test_a_disk_becomes_slow_for_the_process_that_runs() -> None:
    """And for the next one."""
    machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))

    async def seconds_of(world: World) -> float:
        began = trio.current_time()
        for _ in range(20):
            await world.workers.run(lambda: None)
        return trio.current_time() - began

    async def run() -> tuple[float, float, float]:
        world = machine.world()
        before = await seconds_of(world)
        machine.slow_down(1.0)
        return before, await seconds_of(world), await seconds_of(machine.world())

    before, after, next_process = seeded_run(run, seed=1)

    assert before == 0.0
    assert after > 1.0
    assert next_process > 1.0


def test_some_power_cuts_take_only_the_edges_of_writes() -> None:
    def losses(seed: int) -> bool:
        machine = sim_machines(seed, 1)[0]
        file = machine.disk.open("a", create_size=1 << 16)
        file.sync()
        machine.disk.sync_directory("")
        file.write(b"x" * 20_000, 0)
        machine.power_cut()
        return "lost_edge" in machine.disk.faults.injected

    assert {losses(seed) for seed in range(20)} == {False, True}
