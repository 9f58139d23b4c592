"""What seeds draw for groups whose master a controller elects."""

from __future__ import annotations

from harness.simulate.elected_draw import RESTORES, ElectedDraw

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


def test_many_seeds_draw_nothing_of_what_was_added_later() -> None:
    """They give the traces that they gave before."""
    plain = [draw for draw in DRAWS if not restores(draw) and not has_further_settings(draw)]

    assert len(plain) > len(DRAWS) // 3
