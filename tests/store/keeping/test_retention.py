from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.store.config import StoreConfig
from ledgermq.store.keeping.retention import Deletion, FileAge, Reason, RetentionRules, disk_full, due, parse_hours

NOW = 1_000 * 3_600_000
HOUR = 3_600_000


def files_of_age(*hours: int) -> list[FileAge]:
    return [FileAge(f"{n:020}", NOW - age * HOUR, 1 << 30, (n + 1) << 30) for n, age in enumerate(hours)]


def decide(
    files: list[FileAge],
    *,
    hour: int = 12,
    ratio: float = 0.5,
    rules: RetentionRules | None = None,
    manual: bool = False,
    read_before: int = 0,
) -> Deletion:
    rules = rules or RetentionRules()
    return due(files, now_ms=NOW, local_hour=hour, disk_ratio=ratio, rules=rules, manual=manual, read_before=read_before)


@pytest.mark.parametrize(
    ("hour", "ratio", "manual", "reason"),
    [
        (12, 0.5, False, None),
        (4, 0.5, False, Reason.HOUR),
        (12, 0.75, False, None),
        (12, 0.751, False, Reason.SPACE),
        (12, 0.5, True, Reason.MANUAL),
    ],
)
def test_expired_files_go_at_the_hour_or_for_space_or_by_hand(
    hour: int, ratio: float, manual: bool, reason: Reason | None
) -> None:
    deletion = decide(files_of_age(100, 72, 71, 1), hour=hour, ratio=ratio, manual=manual)

    assert deletion.reason is reason
    assert len(deletion.names) == (2 if reason else 0)


def test_a_nearly_full_disk_takes_files_that_have_not_expired() -> None:
    deletion = decide(files_of_age(*[1] * 20), ratio=0.851, rules=RetentionRules(forcibly="true"))

    assert deletion.reason is Reason.FORCED
    assert len(deletion.names) == 10


@pytest.mark.parametrize(("read_before", "count"), [(0, 0), ((3 << 30) - 1, 2), (3 << 30, 3), (99 << 30, 4)])
def test_by_default_a_nearly_full_disk_takes_what_all_groups_have_read(read_before: int, count: int) -> None:
    """Messages that a group has not read stay until they expire, and the last file always stays."""
    deletion = decide(files_of_age(*[1] * 5), ratio=0.851, read_before=read_before)

    assert len(deletion.names) == count
    assert deletion.reason is (Reason.CONSUMED if count else Reason.SPACE)
    assert not decide(files_of_age(*[1] * 5), ratio=0.84, read_before=read_before).names


def test_what_has_expired_goes_though_no_group_has_read_it() -> None:
    deletion = decide(files_of_age(100, 100, 1), ratio=0.95, read_before=0)

    assert deletion == Deletion((f"{0:020}", f"{1:020}"), Reason.SPACE)


def test_without_permission_a_nearly_full_disk_takes_expired_files_only() -> None:
    deletion = decide(files_of_age(100, 1, 1), ratio=0.95, rules=RetentionRules(forcibly="false"))

    assert deletion == Deletion((f"{0:020}",), Reason.SPACE)


def test_an_old_file_behind_a_young_one_stays() -> None:
    assert decide(files_of_age(1, 100, 100), hour=4).names == ()


@given(
    st.lists(st.integers(0, 200)),
    st.integers(0, 23),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(["true", "false", "consumed"]),
    st.integers(0, 12 << 30),
)
def test_what_goes_is_a_prefix_that_spares_the_last_file(
    ages: list[int], hour: int, ratio: float, manual: bool, forcibly: str, read_before: int
) -> None:
    files, rules = files_of_age(*ages), RetentionRules(forcibly=forcibly)

    names = decide(files, hour=hour, ratio=ratio, rules=rules, manual=manual, read_before=read_before).names

    assert list(names) == [file.name for file in files[: len(names)]]
    assert len(names) <= min(10, max(len(files) - 1, 0))


def test_configured_values_are_drawn_into_rocketmqs_ranges() -> None:
    config = StoreConfig(
        store_path_root_dir="store",
        file_reserved_time=1,
        delete_when="01;13",
        disk_max_used_space_ratio=99,
        disk_space_clean_forcibly_ratio=0.99,
        disk_space_warning_level_ratio=0.1,
        clean_file_forcibly_enable="false",
        delete_file_batch_max=3,
    )

    rules = RetentionRules.of(config)

    assert rules == RetentionRules(1, (1, 13), 95, 0.85, 0.35, forcibly="false", batch_max=3)


@pytest.mark.parametrize("text", ["", "24", "four", "-1", ";"])
def test_what_is_not_a_list_of_hours_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_hours(text)


def test_the_disk_is_full_above_the_warning_level_only() -> None:
    assert disk_full(0.901, RetentionRules())
    assert not disk_full(0.90, RetentionRules())
