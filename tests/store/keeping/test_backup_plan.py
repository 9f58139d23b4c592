"""What a backup takes over and copies, and from which points a moment is restored."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from ledgermq.store.errors import BackupRefused, DamagedBackup
from ledgermq.store.keeping.backup_plan import Extent, Piece, Point, choose, decode_point, plan

SIZE = 1024


def point(*spans: tuple[int, int], taken_ms: int = 1) -> Point:
    return Point(taken_ms, tuple(Piece(extent(begin, end), 0) for begin, end in spans), ())


def extent(begin: int, end: int) -> Extent:
    start = begin - begin % SIZE
    return Extent("commitlog", start, SIZE, begin, end)


FILES = [extent(start, start + SIZE) for start in (0, SIZE, 2 * SIZE)]


def spans(extents: tuple[Extent, ...]) -> list[tuple[int, int]]:
    return [(each.begin, each.end) for each in extents]


def test_a_first_point_needs_all_files_up_to_the_end_of_the_log() -> None:
    """Whole files may be linked; the one that is being written may not."""
    needed = plan(FILES, 2 * SIZE + 100, None)

    assert spans(needed.missing) == [(0, SIZE), (SIZE, 2 * SIZE), (2 * SIZE, 2 * SIZE + 100)]
    assert [each.is_whole for each in needed.missing] == [True, True, False]
    assert needed.missing_bytes == 2 * SIZE + 100


def test_a_later_point_adds_what_the_log_has_got_since() -> None:
    needed = plan(FILES, 2 * SIZE + 100, point((0, SIZE), (SIZE, SIZE + 300)))

    assert [each.extent.end for each in needed.kept] == [SIZE, SIZE + 300]
    assert spans(needed.missing) == [(SIZE + 300, 2 * SIZE), (2 * SIZE, 2 * SIZE + 100)]
    assert not any(each.is_whole for each in needed.missing)


def test_pieces_of_expired_files_are_left_out() -> None:
    needed = plan(FILES[1:], 2 * SIZE + 100, point((0, SIZE), (SIZE, 2 * SIZE)))

    assert [each.extent.begin for each in needed.kept] == [SIZE]
    assert spans(needed.missing) == [(2 * SIZE, 2 * SIZE + 100)]


def test_a_log_that_went_on_without_the_backup_begins_anew() -> None:
    """Files between two points have expired before they were backed up."""
    needed = plan(FILES[2:], 2 * SIZE + 100, point((0, 100)))

    assert needed.kept == ()
    assert spans(needed.missing) == [(2 * SIZE, 2 * SIZE + 100)]


@pytest.mark.parametrize(
    ("files", "end", "reason"),
    [
        (FILES, SIZE, "ends at 1024, and the newest point of the backup at 1324"),
        (FILES[1:], SIZE, "no record"),
        ([FILES[0], FILES[2]], 3 * SIZE, "begins at 1024 is missing"),
    ],
)
def test_what_is_no_continuation_is_refused(files: list[Extent], end: int, reason: str) -> None:
    with pytest.raises(BackupRefused, match=reason):
        plan(files, end, point((0, SIZE), (SIZE, SIZE + 300)))


def test_a_moment_is_restored_from_the_points_around_it() -> None:
    """Tables are older than the moment, and the log reaches behind it."""
    first, second, third = (point((0, at * 100), taken_ms=at * 1000) for at in (1, 2, 3))

    choice = choose([third, first, second], 2500)
    newest = choose([third, first, second], None)

    assert (choice.tables, choice.log, choice.until_ms) == (second, third, 2500)
    assert (newest.tables, newest.log) == (third, third)
    for moment in (999, 3001):
        with pytest.raises(BackupRefused, match="no point of the backup was taken"):
            choose([first, second, third], moment)
    spelt = [datetime.fromtimestamp(at).astimezone().isoformat(" ", "milliseconds") for at in (1, 3)]
    with pytest.raises(BackupRefused, match=re.escape(f"points from {spelt[0]} to {spelt[1]}")):
        choose([first, second, third], 999)
    with pytest.raises(BackupRefused, match="no point"):
        choose([], None)
    with pytest.raises(BackupRefused, match="from 200 to 1024 had expired"):
        choose([second, point((SIZE, SIZE + 1), taken_ms=3000)], 2500)


def test_pieces_that_expired_behind_the_tables_are_restored_too() -> None:
    before, after = point((0, SIZE), (SIZE, SIZE + 10), taken_ms=1), point((SIZE, SIZE + 10), (SIZE + 10, 2 * SIZE), taken_ms=3)

    assert [piece.extent.begin for piece in choose([before, after], 2).pieces] == [0, SIZE, SIZE + 10]


def test_a_manifest_is_read_back_and_damage_is_found() -> None:
    whole = point((0, SIZE), (SIZE, SIZE + 300))

    assert decode_point(whole.encode(), "p") == whole
    for damaged in (
        whole.encode().replace(b"1324", b"1325", 1),
        whole.encode().replace(b'"format":1', b'"format":2'),
        b"[]",
        b"{",
        b"",
    ):
        with pytest.raises(DamagedBackup, match="p of the backup is damaged"):
            decode_point(damaged, "p")
