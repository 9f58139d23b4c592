"""Epoch lists: which master wrote what, and where two logs part."""

from __future__ import annotations

import pytest

from ledgermq.ha.classic.epochs import Epoch, EpochList, common_point
from ledgermq.ha.errors import CorruptEpochs

A, B = b"A" * 16, b"B" * 16


def epochs(*starts: tuple[int, int], writer: bytes = A) -> EpochList:
    return EpochList(tuple(Epoch(number, start, writer, 1) for number, start in starts))


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        (epochs((1, 0), (2, 1000), (3, 4000)), 9000, epochs((1, 0), (2, 1000), (3, 3500)), 5000, 3500),
        (epochs((1, 0), (2, 1000)), 2600, epochs((1, 0), (2, 1000)), 2500, 2500),
        (epochs((1, 0), (2, 1000)), 2600, epochs((1, 10), (2, 990)), 2500, None),
        (epochs((1, 0), (2, 1000)), 2600, epochs((1, 0), (2, 1000), (3, 2800)), 4000, 2600),
        (EpochList(), 0, epochs((1, 0)), 2500, None),
    ],
    ids=["newest common is older", "shorter log wins", "nothing in common", "other is only ahead", "no history"],
)
def test_logs_part_inside_the_newest_common_epoch(
    own: EpochList, own_end: int, other: EpochList, other_end: int, point: int | None
) -> None:
    """The consistent point is the earlier end of the newest epoch that both know, from either side."""
    assert common_point(own, own_end, other, other_end) == point
    assert common_point(other, other_end, own, own_end) == point


def test_two_masters_of_one_number_and_start_do_not_share_an_epoch() -> None:
    """Who wrote an epoch tells apart two nodes that became master at the same offset."""
    first = EpochList((Epoch(1, 0, A, 1), Epoch(2, 500, A, 1)))
    second = EpochList((Epoch(1, 0, A, 1), Epoch(2, 500, B, 1)))

    assert common_point(first, 900, second, 800) == 500


def test_becoming_master_begins_an_epoch_at_the_end_of_the_log() -> None:
    """A new epoch gets a number never used before, even if the log has lost the tail that the last ones wrote."""
    before = epochs((1, 0), (2, 1000), (3, 4000))

    after = before.begun(0, 3000, B, 2)

    assert after == EpochList((*epochs((1, 0), (2, 1000)).entries, Epoch(4, 3000, B, 2)))


def test_a_restart_without_new_bytes_does_not_lengthen_the_list() -> None:
    """An epoch that wrote nothing leaves no entry behind."""
    once = epochs((1, 0)).begun(0, 1000, A, 1)

    twice = once.begun(0, 1000, A, 1)

    assert [(entry.number, entry.start) for entry in twice] == [(1, 0), (3, 1000)]


def test_a_log_older_than_epochs_gets_one_for_what_it_holds() -> None:
    """Bytes written before there were epochs belong to the first one."""
    begun = EpochList().begun(4096, 10_000, A, 1)

    assert [(entry.number, entry.start) for entry in begun] == [(1, 4096), (2, 10_000)]


def test_the_epoch_of_an_offset_is_the_last_that_begins_there_or_before() -> None:
    """An epoch holds its own start, and the next one begins where it ends."""
    listed = epochs((1, 0), (2, 1000))

    assert [entry and entry.number for entry in map(listed.at, (0, 999, 1000, 5000))] == [1, 1, 2, 2]
    assert epochs((1, 10)).at(9) is None


def test_what_waited_for_a_slave_is_distinguished_from_what_did_not() -> None:
    """Only stretches whose puts waited for a slave count as promised."""
    listed = EpochList((Epoch(1, 0, A, 1), Epoch(2, 1000, A, 2), Epoch(3, 2000, A, 1)))

    assert listed.promised_end(500, 2600) == 2000
    assert listed.promised_end(2100, 2600) == 2100
    assert listed.promised_end(1500, 1800) == 1800


@pytest.mark.parametrize("starts", [((2, 0), (1, 10)), ((1, 0), (1, 10)), ((1, 10), (2, 5))])
def test_a_list_that_goes_back_is_refused(starts: tuple[tuple[int, int], ...]) -> None:
    """Numbers ascend and starts never descend."""
    with pytest.raises(CorruptEpochs):
        epochs(*starts)


def test_a_list_never_had_an_epoch_whose_number_it_gives_to_another_one_or_has_not_reached() -> None:
    """A list with later epochs may have lost the bytes of one, and with them its entry."""
    first, second, third = Epoch(1, 0, A, 2), Epoch(2, 100, A, 2), Epoch(3, 200, A, 2)

    assert EpochList().never_had(first)
    assert EpochList((first,)).never_had(second)
    assert EpochList((first, Epoch(2, 100, B, 2))).never_had(second)
    assert EpochList((first, Epoch(2, 90, A, 2), third)).never_had(second)
    assert not EpochList((first, third)).never_had(second)
    assert not EpochList((first, second)).never_had(second)
