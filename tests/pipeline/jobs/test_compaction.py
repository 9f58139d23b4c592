"""The newest message of every key: which one it is, and what becomes of the last result when a run fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from ledgermq.pipeline.errors import BadOption, CorruptFile, DataLoss
from ledgermq.pipeline.jobs import compaction
from ledgermq.pipeline.jobs.compaction import compact, compact_to

from ..stores import Stored, StoreFiles, interleaved

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("broadcast_max", [pytest.param(0, marks=pytest.mark.slow), 10])
def test_the_newest_message_of_every_key_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broadcast_max: int
) -> None:
    """An empty one deletes its key. With more keys than every task can have in memory, bodies are shuffled."""
    monkeypatch.setattr(compaction, "BROADCAST_MAX", broadcast_max)
    files = StoreFiles(tmp_path)
    said = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("b", b""), ("", b"5")]
    files.append(
        Stored("T", 0, body, {"KEYS": key} if key else {}, store_timestamp=1_700_000_000_000 + at)
        for at, (key, body) in enumerate(said)
    )

    found = compact(spark, {"storePath": str(tmp_path), "subscribe": "T"})

    plan = found._jdf.queryExecution().toString()  # type: ignore[operator]
    assert ("strategy=broadcast" in plan) == bool(broadcast_max)
    assert {(row["keys"], bytes(row.body)) for row in found.collect()} == {("a", b"3"), ("c", b"4")}


@pytest.mark.slow
def test_what_the_last_run_read_and_is_missing_now_is_a_loss(
    spark: SparkSession, tmp_path: Path, pipeline_command: Callable[..., Result]
) -> None:
    """The last result remains, also if it was there for a moment under the other name only; without it, a run goes on."""
    files, to = StoreFiles(tmp_path / "store"), str(tmp_path / "to")
    files.append([*interleaved(9), *(Stored("U", 0, b"u", {"KEYS": f"u{number}"}) for number in range(6))])
    source = {"storePath": str(files.root), "subscribePattern": "T|U"}
    whole = compact_to(spark, source, to)
    (tmp_path / "to").rename(tmp_path / ".to.next")  # as a run that is killed at the end leaves it
    shutil.rmtree(files.root / "consumequeue" / "U")

    with pytest.raises(DataLoss, match=r"U@store:0: it was read up to offset 6, and the queue no longer exists"):
        compact_to(spark, source, to)
    kept = spark.read.parquet(to).count()
    arguments = ("compact", "T", "U", "--store", str(files.root), "--to", to)
    lost = pipeline_command(*arguments, status=3)
    left = pipeline_command(*arguments, "--option", "failOnDataLoss=false")

    assert (whole, kept, left.stdout) == (15, 15, "9 keys\n")
    assert "Nothing was skipped" in lost.stderr
    assert not (tmp_path / ".to.next").exists()
    assert "U@store:0: it was read up to offset 6" in left.stderr


class LocalFiles:
    """Stands for Hadoop's file system of this machine."""

    def create(self, path: str, _overwrite: bool) -> BinaryIO:
        return Path(path).open("wb")

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def delete(self, path: str, _recursive: bool) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def rename(self, old: str, new: str) -> bool:
        Path(old).rename(new)
        return True


@pytest.mark.parametrize(("is_complete", "kept"), [(True, "new"), (False, "old")])
def test_a_replacement_that_was_interrupted_is_completed_if_the_new_result_is_whole(
    tmp_path: Path, is_complete: bool, kept: str
) -> None:
    """A run that is killed while it deletes the last result leaves a part of that."""
    for directory, file in (("to", "old"), (".to.next", "new")):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / file).touch()
    if is_complete:
        (tmp_path / ".to.next" / compaction.MANIFEST).touch()

    compaction._Directory(  # pyright: ignore[reportPrivateUsage]
        str(tmp_path / "to"), str(tmp_path / ".to.next"), LocalFiles(), lambda *parts: "/".join(parts)
    ).finish()

    assert {path.name for path in (tmp_path / "to").iterdir()} - {compaction.MANIFEST} == {kept}


def test_a_new_result_is_on_the_medium_before_the_last_one_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut would leave neither; and a manifest stands only for files that are there."""
    to, following = tmp_path / "to", tmp_path / ".to.next"
    for directory, file in ((to, "old"), (following, "new")):
        directory.mkdir()
        (directory / file).touch()
    steps: list[tuple[str, bool, bool]] = []

    def sync(path: str) -> None:
        """Note what is synced, and whether the last result and the manifest of the next one are there then."""
        name = str(Path(path).relative_to(tmp_path))
        steps.append((name, (to / "old").exists(), (following / compaction.MANIFEST).exists()))

    monkeypatch.setattr(compaction, "sync", sync)

    compaction._Directory(  # pyright: ignore[reportPrivateUsage]
        str(to), str(following), LocalFiles(), lambda *parts: "/".join(parts)
    ).replace({})

    assert {(".to.next/new", True, False), (f".to.next/{compaction.MANIFEST}.tmp", True, False)} <= set(steps)
    assert (".to.next", True, True) in steps
    assert steps[-1] == (".", False, False)


def test_two_runs_do_not_compact_into_one_directory(tmp_path: Path) -> None:
    """Each would delete what the other one has written."""
    to = str(tmp_path / "to")
    session: Any = None  # is not reached

    with (
        compaction._sole_writer(to),  # pyright: ignore[reportPrivateUsage]
        pytest.raises(BadOption, match="another run is compacting into this directory"),
    ):
        compact_to(session, {}, to)


def test_a_manifest_that_is_damaged_is_named(spark: SparkSession, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    files.append(interleaved(9))
    source = {"storePath": str(files.root), "subscribe": "T"}
    compact_to(spark, source, str(tmp_path / "to"))
    manifest = tmp_path / "to" / "_ledgermq.json"
    manifest.write_text("{}")
    (tmp_path / "to" / "._ledgermq.json.crc").unlink()

    with pytest.raises(CorruptFile, match=r"_ledgermq.json: the manifest of a compaction is not what was written"):
        compact_to(spark, source, str(tmp_path / "to"))
