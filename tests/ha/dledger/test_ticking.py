"""When the ticking task wakes a node, and which time its core is given, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgermq.ha.dledger.ticking import STALLED_TICKS, Ticking

TICK = 0.02


@attrs.define
class Timer:
    """A core with one timer, which begins again when it expires."""

    period: int
    left: int
    ticks: int = 0
    expired: int = 0

    @property
    def ticks_until_due(self) -> int:
        return self.left

    def tick(self, count: int = 1) -> None:
        self.ticks += count
        self.left -= count
        if self.left <= 0:
            self.expired += 1
            self.left = self.period


@attrs.define(eq=False)
class Now:
    """The clock of trio, or one that is faster, and how long the process was suspended."""

    suspended: float = 0.0
    pace: float = 1.0

    def wall_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return trio.current_time() * self.pace + self.suspended


@attrs.define(eq=False)
class Scene:
    """A core, its ticking, and the times at which the node was woken."""

    core: Timer
    clock: Now = attrs.field(factory=Now)
    woken: list[float] = attrs.field(factory=list[float])
    ticking: Ticking = attrs.field(init=False)
    began: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.ticking = Ticking(self.core, self.clock, TICK, self.wake)

    def wake(self) -> None:
        self.woken.append(round(trio.current_time() - self.began, 3))
        self.ticking.plan()

    def restart_timer(self, ticks: int) -> None:
        """Give the core an input that lets its timer begin again."""
        self.ticking.let_time_pass()
        self.core.left = ticks
        self.ticking.plan()


async def running(scene: Scene, story: Callable[[], Awaitable[None]]) -> None:
    scene.began = trio.current_time()
    scene.ticking.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.ticking.run)
        await wait_all_tasks_blocked()
        await story()
        nursery.cancel_scope.cancel()


async def test_the_node_is_woken_when_a_timer_expires_and_not_before(autojump_clock: MockClock) -> None:
    """Five ticks of 20 ms each."""
    scene = Scene(Timer(5, 5))

    async def nothing_happens() -> None:
        await trio.sleep(0.45)

    await running(scene, nothing_happens)

    assert scene.woken == [0.1, 0.2, 0.3, 0.4]
    assert scene.core.ticks == 20


async def test_a_timer_that_begins_again_in_time_never_wakes_the_node(autojump_clock: MockClock) -> None:
    """As the election time-out of a follower does with each heartbeat."""
    scene = Scene(Timer(15, 15))

    async def heartbeats() -> None:
        for _ in range(20):
            await trio.sleep(0.1)
            scene.restart_timer(15)

    await running(scene, heartbeats)

    assert scene.woken == []
    assert scene.core.ticks == 100


async def test_a_timer_that_becomes_shorter_wakes_the_node_earlier(autojump_clock: MockClock) -> None:
    """As the election time-out does when the connection from the leader ends."""
    scene = Scene(Timer(30, 30))

    async def leader_ends() -> None:
        await trio.sleep(0.1)
        scene.restart_timer(3)
        await trio.sleep(0.1)

    await running(scene, leader_ends)

    assert scene.woken == [0.16]


@pytest.mark.parametrize("ticks", [STALLED_TICKS, STALLED_TICKS + 2])
async def test_a_node_that_was_suspended_counts_half_of_its_sleep(ticks: int, autojump_clock: MockClock) -> None:
    """Otherwise it would time out peers whose messages are still in its sockets; a short delay is counted whole."""
    scene = Scene(Timer(30, 30))

    async def suspended() -> None:
        scene.clock.suspended += (30 + ticks) * TICK
        scene.ticking.let_time_pass()

    await running(scene, suspended)

    assert scene.core.ticks == (15 if ticks > STALLED_TICKS else 30 + ticks)


async def test_a_node_that_is_late_at_each_wake_up_times_out_its_leader_soon(autojump_clock: MockClock) -> None:
    """As on a machine that is too busy: of each long sleep that ends late, a part counts."""
    scene = Scene(Timer(300, 300), Now(pace=1.05))  # six seconds on this clock, whose sleeps are 5% too long

    async def nothing_happens() -> None:
        await trio.sleep(9.1)

    await running(scene, nothing_happens)

    assert scene.core.expired == 1
