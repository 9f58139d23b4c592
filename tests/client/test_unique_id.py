"""Unique ids in Java's layout."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.unique_id import UniqueIds, sent_at_ms

NOW = 1_700_000_000_000
MONTH_START = int(datetime(2023, 11, 1, tzinfo=UTC).timestamp()) * 1000


def test_an_id_is_laid_out_as_in_java() -> None:
    """Address, process, instance, milliseconds of the month, counter."""
    unique_id = UniqueIds("10.0.0.5", 0x1234, 0x89ABCDEF).next(NOW)

    assert unique_id == f"0A000005123489ABCDEF{NOW - MONTH_START:08X}0001"
    assert len(UniqueIds("::1", 1, 1).next(NOW)) == 56


@given(st.lists(st.integers(NOW - 5000, NOW + 5000), max_size=50))
def test_ids_differ_whatever_the_clock_does(times: list[int]) -> None:
    """A clock that stands still or jumps back makes no id twice."""
    ids = UniqueIds("10.0.0.5", 1, 1)

    made = [ids.next(time) for time in times]

    assert len(set(made)) == len(made)


def test_a_millisecond_has_room_for_all_that_is_sent_in_it() -> None:
    """After 65,536 ids of one millisecond the next one is borrowed."""
    ids = UniqueIds("10.0.0.5", 1, 1)

    made = {ids.next(NOW) for _ in range(200_000)}

    assert len(made) == 200_000


def test_a_new_month_starts_anew() -> None:
    """The milliseconds count from the first of the month in which the id is made."""
    ids = UniqueIds("10.0.0.5", 1, 1)
    ids.next(NOW)
    december = int(datetime(2023, 12, 1, tzinfo=UTC).timestamp()) * 1000
    january = int(datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp()) * 1000

    assert ids.next(december)[-12:-4] == "00000000"
    assert ids.next(january)[-12:-4] == f"{1000:08X}"


@given(st.integers(0, 20 * 86_400_000))
def test_the_send_time_can_be_read_back(later_ms: int) -> None:
    """Within a month, also across its end, an id tells when it was made."""
    assert sent_at_ms(UniqueIds("10.0.0.5", 1, 1).next(NOW), NOW + later_ms) == NOW


@pytest.mark.parametrize("text", ["", "abc", "x" * 32])
def test_other_texts_are_refused(text: str) -> None:
    """Ids of other clients need not have this layout."""
    with pytest.raises(ValueError, match=r"hex|literal"):
        sent_at_ms(text, NOW)
