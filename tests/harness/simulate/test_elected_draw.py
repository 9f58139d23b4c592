"""What seeds draw for groups whose master a controller elects."""

from __future__ import annotations

from harness.simulate.elected_draw import ALWAYS, ORDERS, RESTORES, UNSYNCED, ElectedDraw
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

DRAWS = [ElectedDraw.of(seed) for seed in range(300)]


def restores(draw: ElectedDraw) -> bool:
    return any(blow.kind in RESTORES for blow in (*draw.blows, *draw.failures))


def has_further_settings(draw: ElectedDraw) -> bool:
    return draw.members_min > 1 or draw.copies is not None or draw.autoswitch


def test_every_setting_is_drawn_by_some_seeds_and_alone_by_one() -> None:
    assert any(draw.members_min == 2 and not draw.autoswitch for draw in DRAWS)
    assert any(draw.autoswitch and draw.members_min == 1 for draw in DRAWS)
    assert any(draw.may_lose for draw in DRAWS)
    assert any(draw.copies is not None and not draw.may_lose for draw in DRAWS)
    assert any(restores(draw) and not has_further_settings(draw) for draw in DRAWS)
    assert any(restores(draw) and draw.autoswitch for draw in DRAWS)
    assert {blow.kind for draw in DRAWS for blow in draw.blows} >= {*ORDERS, UNSYNCED}
    assert all(draw.sync_flush for draw in DRAWS if any(blow.kind == UNSYNCED for blow in draw.blows))


def test_many_seeds_draw_nothing_of_what_was_added_later() -> None:
    """They give the traces that they gave before."""
    plain = [draw for draw in DRAWS if not restores(draw) and not has_further_settings(draw)]

    assert len(plain) > len(DRAWS) // 3


def test_a_replica_with_a_slow_disk_gets_more_than_a_few_short_frames_at_a_time() -> None:
    """It syncs once for all that have come, and catches up with its master if these are many (seeds 5000 and 5114)."""
    slow = [draw for draw in DRAWS if draw.autoswitch and draw.sync_flush and draw.sync_seconds_max == 0.2]

    assert slow
    assert {draw.send_buffer_bytes for draw in slow} == {SEND_BUFFER_BYTES}


def test_where_a_failover_may_lose_messages_only_those_are_sent_whose_holders_are_known() -> None:
    assert {draw.workloads for draw in DRAWS if draw.may_lose} == {ALWAYS}
