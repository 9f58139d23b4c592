"""Stores that cannot be opened as they are: a broker says what is wrong, where, and what to do, or puts it right."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import attrs
import pytest
import trio

from harness.processes.load import PULL_SETTINGS, Load
from harness.processes.servers import NotUp, broker_arguments, running, running_broker
from ledgermq.remoting.channel import connected
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History

SEGMENT_BYTES = 64 << 10
SETTINGS = {"mappedFileSizeCommitLog": SEGMENT_BYTES, **PULL_SETTINGS}
MESSAGES = 200


async def fill(directory: Path) -> Load:
    """Fill a store with some segments of messages; its broker has stopped in order."""
    load = Load(History(sync_flush=True), random.Random(2))
    async with running_broker(directory / "store", SETTINGS) as broker:
        async with connected(broker.address, network=load.network) as channel:
            for number in range(MESSAGES):
                await load.send(channel, load.numbered(("Faults", number % 4)))
        assert await broker.stop() == 0
    load.history.ends.append(End.CLEAN)
    assert all(put.acknowledged for put in load.history.puts)
    return load


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Load]:
    """A filled store, of which each test damages a copy, and what was sent to it."""
    directory = tmp_path_factory.mktemp("filled")
    return directory / "store", trio.run(fill, directory)


@pytest.fixture
def stored(filled: tuple[Path, Load], tmp_path: Path) -> Load:
    """A copy of the filled store in the directory of the test; returns what was sent to it."""
    store, load = filled
    shutil.copytree(store, tmp_path / "store")
    return attrs.evolve(load, history=deepcopy(load.history), positions={})


async def refusal(directory: Path, settings: dict[str, object] | None = None) -> str:
    """Start a broker that must not start; returns what it wrote to standard error."""
    async with running(directory / "second", *broker_arguments(directory / "store", settings or SETTINGS)) as broker:
        with pytest.raises(NotUp) as ended:
            await broker.up()
        assert ended.value.status == 1, ended.value.errors
        assert "Traceback" not in ended.value.errors
        return ended.value.errors


async def test_two_brokers_never_share_a_store(tmp_path: Path) -> None:
    """The second ends at once and names the store; the first does not notice."""
    load = Load(History(sync_flush=True), random.Random(2))
    async with running_broker(tmp_path / "store", SETTINGS) as broker:
        said = await refusal(tmp_path)

        async with connected(broker.address, network=load.network) as channel:
            await load.send(channel, load.numbered(("Faults", 0)))
    assert load.history.puts[0].acknowledged
    assert str(tmp_path / "store") in said
    assert "in use by another broker" in said
    assert "storePathRootDir" in said


@pytest.mark.usefixtures("stored")
async def test_a_segment_of_wrong_size_is_named(tmp_path: Path) -> None:
    """Whether the file was cut short or the configuration is another."""
    first = tmp_path / "store" / "commitlog" / f"{0:020d}"

    said = await refusal(tmp_path, {**SETTINGS, "mappedFileSizeCommitLog": 2 * SEGMENT_BYTES})
    assert str(first) in said
    assert f"has {SEGMENT_BYTES} bytes, the configuration says {2 * SEGMENT_BYTES}" in said
    assert "nothing was opened" in said

    with first.open("r+b") as file:
        file.truncate(SEGMENT_BYTES // 2)
    said = await refusal(tmp_path)
    assert str(first) in said
    assert f"has {SEGMENT_BYTES // 2} bytes" in said


async def test_a_record_that_was_synced_and_is_damaged_is_named_and_not_cut(tmp_path: Path, stored: Load) -> None:
    """Cutting it would lose acknowledged messages in silence."""
    last = max(stored.history.puts, key=lambda put: put.physical_offset)
    segment, within = divmod(last.physical_offset, SEGMENT_BYTES)
    path = tmp_path / "store" / "commitlog" / f"{segment * SEGMENT_BYTES:020d}"
    content = path.read_bytes()
    path.write_bytes(content[:within] + bytes(64) + content[within + 64 :])
    damaged = path.read_bytes()

    said = await refusal(tmp_path)

    assert str(tmp_path / "store" / "commitlog") in said
    assert f"physical offset {last.physical_offset} is damaged" in said
    assert "Restore the file" in said
    assert path.read_bytes() == damaged


def no_checkpoint(store: Path) -> None:
    (store / "checkpoint").unlink()


def no_queues(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    no_checkpoint(store)


def no_tables(store: Path) -> None:
    shutil.rmtree(store / "config")


def half_a_table(store: Path) -> None:
    path = store / "config" / "topics.json"
    path.write_bytes(path.read_bytes()[:50])
    path.with_suffix(".json.bak").unlink(missing_ok=True)


def garbage_in_the_checkpoint(store: Path) -> None:
    (store / "checkpoint").write_bytes(random.Random(1).randbytes(4096))


def a_killed_broker(store: Path) -> None:
    (store / "abort").touch()
    no_checkpoint(store)


def a_torn_tail(store: Path) -> None:
    """What a killed broker may leave behind its last whole record."""
    (store / "abort").touch()
    no_checkpoint(store)
    path = max(store.joinpath("commitlog").iterdir())
    content = path.read_bytes()
    end = len(content.rstrip(b"\0")) + 16
    path.write_bytes(content[:end] + content[:30] + content[end + 30 :])


@pytest.mark.parametrize(
    "damage",
    [no_checkpoint, no_queues, no_tables, half_a_table, garbage_in_the_checkpoint, a_killed_broker, a_torn_tail],
)
async def test_what_can_be_made_anew_is_made_anew(tmp_path: Path, stored: Load, damage: Callable[[Path], None]) -> None:
    """Everything but the log itself follows from the log: not one message, offset or key is missing afterwards."""
    await trio.to_thread.run_sync(damage, tmp_path / "store")

    async with running_broker(tmp_path / "store", SETTINGS) as broker:
        snapshot = await stored.look(broker.address)
        async with connected(broker.address, network=stored.network) as channel:
            answer = await stored.send(channel, stored.numbered(("Faults", 0)))
        assert await broker.stop() == 0

    assert check_history(attrs.evolve(stored.history, snapshots=[snapshot])) == []
    assert answer.ext["queueOffset"] == str(MESSAGES // 4)


@pytest.mark.parametrize(
    ("table", "content"),
    [("topics.json", '{"topicConfigTable":{"T":5}}'), ("consumerOffset.json", '{"offsetTable":{"T@g":{"0":"x"}}}')],
)
@pytest.mark.usefixtures("stored")
async def test_a_table_that_makes_no_sense_is_named(tmp_path: Path, table: str, content: str) -> None:
    """It is JSON, but not a table: nobody but the operator can say what was meant."""
    path = tmp_path / "store" / "config" / table
    path.write_text(content)

    said = await refusal(tmp_path)

    assert str(path) in said
