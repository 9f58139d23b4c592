"""Directories on other file systems: opened, or refused by name, and never made here under the name of their URI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.jobs.archive import Destination
from ledgermq.pipeline.jobs.compaction import check_replaceable
from ledgermq.pipeline.jobs.places import sole_user
from ledgermq.pipeline.options import write_options
from ledgermq.pipeline.sink import Notes
from ledgermq.pipeline.storage import local_path, open_files


def notes(place: str) -> Any:
    return Notes.of(write_options({"nameServer": "a:1", "topic": "T", "checkpointLocation": place}))


@pytest.mark.parametrize("scheme", ["dbfs:/", "dbfs://", "wasbs://container@account.blob.core.windows.net/", "hopsfs:///"])
@pytest.mark.parametrize("use", [Destination.of, notes])
def test_a_file_system_that_is_not_there_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, use: Callable[[str], Any]
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(BadOption, match=f"PyArrow cannot open '{scheme.partition(':')[0]}:' here"):
        use(f"{scheme}somewhere")

    assert list(tmp_path.iterdir()) == []


def test_what_is_elsewhere_is_not_locked_or_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    check_replaceable("dbfs:/a")
    with sole_user("dbfs:/a"):
        assert list(tmp_path.iterdir()) == []


def test_hadoops_names_of_s3_are_those_of_pyarrow() -> None:
    kinds = {type(open_files("to", f"{scheme}://bucket/a?region=eu-west-1")[0]).__name__ for scheme in ("s3", "s3a", "s3n")}

    assert kinds == {"S3FileSystem"}


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("/a/b", "/a/b"), ("a", "a"), ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("FILE://localhost/a", "/a"),
        ("s3a://b/a", None), ("hdfs:/a", None),
    ],
)  # fmt: skip
def test_a_directory_of_this_machine_may_have_a_scheme_too(place: str, path: str | None) -> None:
    assert local_path(place) == path
