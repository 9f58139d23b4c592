"""Archives: rounds, interruptions, and messages that no longer exist. Tasks run in this process, without Spark."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow.dataset as ds
import pytest
from pyarrow.fs import LocalFileSystem

from ledgermq.pipeline.errors import BadOption, CorruptFile, DataLoss
from ledgermq.pipeline.jobs import archive as archiving
from ledgermq.pipeline.jobs.archive import Archived, Destination, archive

from ..stores import Stored, StoreFiles, interleaved

DAY_MS = 86_400_000


@attrs.frozen
class Tasks:
    """Stands for a distributed list of Spark."""

    given: list[Any]
    work: Callable[[Any], Any] = lambda task: task

    def map(self, work: Callable[[Any], Any]) -> Tasks:
        return Tasks(self.given, work)

    def collect(self) -> list[Any]:
        return [self.work(task) for task in self.given]


class Session:
    """Stands for a session of Spark."""

    defaultParallelism = 2  # noqa: N815 - the name is Spark's

    @property
    def sparkContext(self) -> Session:  # noqa: N802
        return self

    def parallelize(self, tasks: Iterable[Any], count: int) -> Tasks:
        return Tasks(list(tasks))


def run(files: StoreFiles, to: Path, **options: str) -> Archived:
    session: Any = Session()
    return archive(session, {"storePath": str(files.root), "subscribe": "T", **options}, str(to))


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    written = StoreFiles(tmp_path / "store", segment_size=8192)
    written.append(interleaved(120))
    return written


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def rows_in(to: Path) -> list[tuple[str, int, int]]:
    table: Any = ds.dataset(to, partitioning="hive", format="parquet").to_table(["topic", "queueId", "queueOffset"])
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in table.to_pylist())


def rows_of(files: StoreFiles) -> list[tuple[str, int, int]]:
    return sorted((message.topic, message.queue_id, offset) for message, offset, _, _ in files.placed)


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def interrupted(files: StoreFiles, to: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive whose first round ended before its manifest was written."""
    with monkeypatch.context() as patched:
        patched.setattr(archiving.Destination, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(files, to)
    return to


def test_an_archive_goes_on_where_it_ended(files: StoreFiles, to: Path) -> None:
    """Topics and days become directories; a run without news writes nothing."""
    options = {"subscribe": "T,U", "minPartitions": "3"}
    files.append([Stored("U", 0, b"later", store_timestamp=1_700_000_000_000 + DAY_MS), Stored("U", 0, b"now")])

    first = run(files, to, **options)
    nothing = run(files, to, **options)
    files.append(interleaved(30))
    second = run(files, to, **options)

    assert (first.rows, nothing, second.rows) == (122, Archived(0, 0, 0, 0), 30)
    assert rows_in(to) == rows_of(files)
    days = sorted(str(path.relative_to(to)) for path in to.glob("topic=U/dt=*"))
    assert days == ["topic=U/dt=2023-11-14", "topic=U/dt=2023-11-15"]
    assert not list(to.rglob("*.tmp"))


def test_a_round_that_was_interrupted_is_done_again_exactly(files: StoreFiles, interrupted: Path) -> None:
    """Though more has come meanwhile: the same files, no message twice, and nothing is left of the files that were open."""
    left = sorted(interrupted.rglob("*.parquet"))
    (left[0].parent / ".half-0.1234abcd.tmp").write_bytes(b"half")
    files.append(interleaved(30))

    done = run(files, interrupted)

    assert (done.rounds, done.rows) == (2, 150)
    assert set(left) < set(interrupted.rglob("*.parquet"))
    assert rows_in(interrupted) == rows_of(files)
    assert not list(interrupted.rglob("*.tmp"))


def test_an_interrupted_round_is_not_continued_from_a_store_of_another_name(files: StoreFiles, interrupted: Path) -> None:
    """It would end without the messages of the first store; its name can be given to the copy."""
    copy = attrs.evolve(files, root=files.root.parent / "copy")
    shutil.copytree(files.root, copy.root)

    with pytest.raises(BadOption, match=r"'brokerName'.*while it read T@store:0.*got 'copy'"):
        run(copy, interrupted)
    run(copy, interrupted, brokerName="store")

    assert rows_in(interrupted) == rows_of(files)


def test_two_runs_do_not_write_one_archive(files: StoreFiles, to: Path) -> None:
    """Both would write the same messages to different files."""
    with Destination.of(str(to)).locked(), pytest.raises(BadOption, match="another run is archiving into this directory"):
        run(files, to)

    assert run(files, to).rows == 120


def test_an_archive_notices_what_retention_took(files: StoreFiles, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was archived before stays as it is; without `failOnDataLoss` a warning says what is missing."""
    run(files, to)
    files.append(interleaved(600))
    for path in sorted((files.root / "commitlog").iterdir())[:-1]:
        path.unlink()

    with pytest.raises(DataLoss, match=r"archived up to offset 40, the oldest message has offset \d+"):
        run(files, to)
    assert len(rows_in(to)) == 120
    assert run(files, to, failOnDataLoss="false").rows > 0
    assert "T@store:0: it is archived up to offset 40, the oldest message" in capsys.readouterr().err


def test_an_archive_notices_a_store_that_is_older_than_it(
    files: StoreFiles, to: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next messages of a restored store have offsets that are archived already."""
    run(files, to)
    shutil.rmtree(files.root)
    StoreFiles(files.root).append(interleaved(30))

    with pytest.raises(DataLoss, match="archived up to offset 40, and ends at offset 10 now"):
        run(files, to)
    assert run(files, to, failOnDataLoss="false").rows == 0
    assert "and ends at offset 10 now; going on without them" in capsys.readouterr().err


def test_an_archive_notices_a_queue_that_is_gone(files: StoreFiles, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though other queues of the topic are there, or other topics: its manifest says what there was."""
    files.append(interleaved(30, topic="U"))
    run(files, to, subscribe="T,U")
    shutil.rmtree(files.root / "consumequeue" / "U")
    files.append(interleaved(6))

    session: Any = Session()
    for subscription in ({"subscribe": "T,U"}, {"subscribePattern": "T|U"}):
        with pytest.raises(DataLoss, match=r"^U@store:0: it was read up to offset 10, and the queue no longer exists"):
            archive(session, {"storePath": str(files.root), **subscription}, str(to))
    run(files, to)  # does not read U, and expects nothing of it
    files.append(interleaved(3))
    last = run(files, to, subscribe="T,U", failOnDataLoss="false")

    assert last.rows == 3
    assert capsys.readouterr().err.count("U@store:1: it was read up to offset 10") == 1


def test_a_manifest_that_was_changed_is_not_believed(files: StoreFiles, to: Path) -> None:
    """It says what is complete; a wrong one would lose messages."""
    run(files, to)
    manifest = to / "_ledgermq" / "00000001.json"
    manifest.write_text(manifest.read_text().replace("40", "41"))

    with pytest.raises(CorruptFile, match="manifest"):
        run(files, to)


def test_a_manifest_is_written_when_all_that_it_names_outlasts_a_power_cut(
    files: StoreFiles, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the messages of the next run follow a gap that nobody sees."""
    synced: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    run(files, to)

    (written,) = (at for at, path in enumerate(synced) if path.name.startswith(".00000001.json."))
    before, after = synced[:written], synced[written + 1 :]
    for path in to.rglob("*.parquet"):
        assert [each for each in before if each.parent == path.parent and each.name.startswith(f".{path.stem}.")]
        assert {path.parent, path.parent.parent, to, to.parent} <= {*before}
    assert to / "_ledgermq" in after


@pytest.mark.parametrize(("enough", "rounds"), [(1 << 20, 3), (1, 15)])
def test_a_run_that_watches_begins_a_round_each_minute_or_with_enough_bytes(
    files: StoreFiles, to: Path, monkeypatch: pytest.MonkeyPatch, enough: int, rounds: int
) -> None:
    """Messages come all the time; a round for each look would write thousands of small files."""
    now = 1000.0

    def messages_come(_: float) -> None:
        nonlocal now
        now += 10.0
        if now >= 1150.0:
            raise KeyboardInterrupt
        files.append(interleaved(3))

    clock = SimpleNamespace(monotonic=lambda: now, sleep=messages_come, gmtime=time.gmtime, strftime=time.strftime)
    monkeypatch.setattr(archiving, "time", clock)
    monkeypatch.setattr(archiving, "WATCH_BYTES", enough)
    session: Any = Session()

    with pytest.raises(KeyboardInterrupt):
        archive(session, {"storePath": str(files.root), "subscribe": "T"}, str(to), watch=True)

    assert len([path for path in (to / "_ledgermq").glob("*.json") if path.stem.isdigit()]) == rounds


class Objects:
    """A file system on which a file exists once it is closed, as on object stores."""

    def __init__(self) -> None:
        self._local = LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def open_output_stream(self, path: str) -> io.BytesIO:
        class Object(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    Path(path).write_bytes(self.getvalue())
                super().close()

        return Object()


@pytest.mark.parametrize("fails", [False, True])
def test_an_archive_may_lie_in_an_object_store(
    files: StoreFiles, to: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A file is closed before it gets its name, and before it is removed after an error."""
    monkeypatch.setattr(archiving, "open_files", lambda _, place: (Objects(), place))
    if fails:
        with monkeypatch.context() as patched:
            patched.setattr(archiving._Files, "finish", interrupt)  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(KeyboardInterrupt):
                run(files, to)
        assert not [path for path in to.rglob("*") if path.is_file() and path.parent.name != "_ledgermq"]

    assert run(files, to).rows == 120
    assert rows_in(to) == rows_of(files)


@pytest.mark.parametrize("change", [{"columns": "body"}, {"schemaStyle": "kafka"}, {"mode": "PERMISSIVE"}])
def test_what_cannot_be_divided_is_not_archived(files: StoreFiles, to: Path, change: dict[str, str]) -> None:
    """Topic and time of storing are needed, which damaged records do not have."""
    with pytest.raises(BadOption, match="divided by"):
        run(files, to, **change)
