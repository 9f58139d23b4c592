"""Who is alive, who is dead, and who is neither yet."""

from __future__ import annotations

from ledgermq.ha.controller.liveness import TIMEOUT_SECONDS, Heard, Liveness


def test_a_replica_is_alive_for_the_time_that_its_heartbeat_says() -> None:
    liveness = Liveness()
    liveness.hear("b1", 1, Heard(100.0, timeout_seconds=0.5))

    assert liveness.is_alive("b1", 1, 100.4)
    assert liveness.dies_at("b1", 1) == 100.5
    assert not liveness.is_alive("b1", 1, 100.5)


def test_a_new_leader_gives_everybody_a_whole_period() -> None:
    """Whoever was heard of gets its own period, and others the default; nobody counts as alive because of that."""
    liveness = Liveness()
    liveness.hear("b1", 1, Heard(100.0, timeout_seconds=0.5))
    liveness.begin(200.0)

    assert not liveness.is_alive("b1", 1, 200.1)
    assert liveness.dies_at("b1", 1) == 200.5
    assert liveness.dies_at("b1", 2) == 200.0 + TIMEOUT_SECONDS
    assert liveness.dies_at("b1", 2, 0.5) == 200.5


def test_a_heartbeat_that_was_heard_before_it_led_counts() -> None:
    liveness = Liveness()
    liveness.hear("b1", 1, Heard(199.9))
    liveness.begin(200.0)

    assert liveness.is_alive("b1", 1, 200.0)


def test_a_forgotten_replica_is_unknown() -> None:
    liveness = Liveness()
    liveness.hear("b1", 1, Heard(100.0))

    for _ in range(2):
        liveness.forget("b1", [1])

    assert liveness.last("b1", 1) is None
    assert not liveness.is_alive("b1", 1, 100.0)
