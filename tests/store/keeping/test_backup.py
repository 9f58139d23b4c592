"""Backing up a store while a broker writes it, and restoring it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from ledgermq.ha.dledger.offline import log_parts, look_of
from ledgermq.message.layout import decode_record, encode_host, encode_record
from ledgermq.store.errors import BackupRefused, DamagedBackup, UnfinishedCopy
from ledgermq.store.json_file import JsonFile
from ledgermq.store.keeping.backup import BackedUp, DirectoryKeep, restore, take_backup, verify_backup
from ledgermq.store.log.segments import Segments
from ledgermq.store.offline import log_files, read_log
from ledgermq.world.disk import RealDisk
from ledgermq.world.files import replace_file
from ledgermq.world.memory_disk import MemoryDisk

from ..watched_disk import WatchedDisk

SIZE = 1024
BODY_AT = 88
"""Where the body of a record begins, which its CRC covers."""


def offset_in(disk: MemoryDisk, root: str) -> int:
    """The offset in the table of a store."""
    stored: dict[str, int] = JsonFile(disk, f"{root}/config/consumerOffset.json").load() or {}
    return stored["offset"]


@attrs.define
class Store:
    """A classic store whose records are written one by one, each a millisecond after the one before."""

    disk: MemoryDisk = attrs.field(factory=MemoryDisk)
    root: str = "store"
    records: list[bytes] = attrs.field(factory=list[bytes])
    now_ms: int = 1000
    size: int = SIZE
    """The size of a file of the log."""
    _segments: Segments = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._segments = Segments(self.disk, f"{self.root}/commitlog", self.size)

    @property
    def keep(self) -> DirectoryKeep:
        return DirectoryKeep(self.disk, "backup")

    def put(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += 1
            last = self._segments.last()
            record = self.encoded(last.end)
            if last.wrote + len(record) + 8 > self.size:
                self.fill()
                last = self._segments.last()
                record = self.encoded(last.end)
            last.append(record)
            self.records.append(record)

    def fill(self) -> None:
        """End the last file as one that another follows."""
        last = self._segments.files[-1]
        left = self.size - last.wrote
        last.append(left.to_bytes(4, "big") + bytes.fromhex("CBD43194") + bytes(left - 8))

    def encoded(self, offset: int) -> bytes:
        host = encode_host("127.0.0.1", 1)
        return encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=len(self.records),
            physical_offset=offset,
            body=b"%d" % len(self.records),
            properties=b"",
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=host,
            store_timestamp=self.now_ms,
            store_host=host,
            reconsume_times=0,
            prepared_transaction_offset=0,
        )

    def commit(self) -> None:
        """Write a table that leads to the end of the log."""
        JsonFile(self.disk, f"{self.root}/config/consumerOffset.json").save({"offset": len(self.records)})

    def expire(self) -> None:
        self._segments.remove(self._segments.files[0])

    def cut(self, offset: int) -> None:
        self._segments.truncate(offset)
        self.records = [record for record in self.records if decode_record(record).physical_offset < offset]

    def write(self, offset: int, byte: bytes) -> None:
        segment = self._segments.find(offset)
        assert segment is not None
        segment.file.write(byte, offset - segment.start)

    def damage(self, offset: int) -> bytes:
        """Change a byte of the log; returns what it was."""
        segment = self._segments.find(offset)
        assert segment is not None
        byte = segment.file.read(offset - segment.start, 1)
        self.write(offset, bytes([byte[0] ^ 1]))
        return byte

    def back_up(self, pause: Callable[[], None] = lambda: None) -> BackedUp:
        self.now_ms += 1
        done = take_backup(
            self.disk, self.root, self.keep, lambda: log_parts(self.disk, self.root), lambda: self.now_ms, pause=pause
        )
        self.now_ms += 1
        return done

    def restored(self, target: str = "restored", until_ms: int | None = None) -> tuple[list[bytes], int]:
        """The records of a restored store, and the offset in its table."""
        restore(self.disk, self.keep, target, look_of, until_ms=until_ms)
        assert not self.disk.exists(f"{target}/commitlog-unfinished")
        found = [bytes(record.bytes) for record in read_log(log_files(self.disk, target))]
        return found, offset_in(self.disk, target)


@pytest.fixture
def store() -> Store:
    made = Store()
    made.put(12)  # of some hundred bytes each, in three files
    made.commit()
    return made


def test_a_point_is_restored_as_it_was_taken(store: Store) -> None:
    """Full files are linked, the last one is copied up to the end of its records."""
    before = list(store.records)
    done = store.back_up()
    store.put(20)
    store.commit()

    found, offset = store.restored()

    assert (found, offset) == (before, 12)
    assert done.linked_bytes == SIZE
    assert done.linked_bytes + done.copied_bytes == done.point.end
    assert verify_backup(store.keep)[1] == []


def test_a_second_point_copies_nothing_twice(store: Store) -> None:
    first = store.back_up()
    store.put(20)
    store.commit()

    second = store.back_up()

    assert second.copied_bytes + second.linked_bytes == second.point.end - first.point.end
    assert store.restored() == (store.records, 32)


def test_any_moment_between_two_points_is_restored(store: Store) -> None:
    """Records up to it, and the tables of the point before it, which lead to none that is missing."""
    store.back_up()
    store.put(20)
    store.commit()
    store.back_up()

    for number in range(12, 32):
        moment = decode_record(store.records[number]).store_timestamp
        found, offset = store.restored(f"until-{moment}", moment)

        assert (found, offset) == (store.records[: number + 1], 12)


def test_the_cut_at_a_moment_leaves_nothing_behind_it(store: Store) -> None:
    """A broker would take what is there for a torn tail, or worse."""
    store.back_up()
    store.put(20)
    store.back_up()
    moment = decode_record(store.records[14]).store_timestamp

    store.restored("cut", moment)

    size = sum(map(len, store.records[:15]))
    content = b"".join(bytes(file.read(0, file.size)) for file in log_files(store.disk, "cut"))
    assert sum(map(bool, content)) <= size + 16
    assert bytes(content[-SIZE // 2 :]).strip(b"\0") == b"" or len(content) <= 5 * SIZE


def test_a_log_that_the_disk_does_not_give_is_not_backed_up(tmp_path: Path) -> None:
    """The error names the place; a map of the file would end the process, and a cut there would lose the rest in silence."""
    store, root = Store(), f"{tmp_path}/store"
    store.put(12)
    for file in log_files(store.disk, "store"):
        replace_file(RealDisk(), f"{tmp_path}/{file.path}", file.read(0, file.size))
    disk = WatchedDisk(unreadable={f"{root}/commitlog/{SIZE:020d}": range(50, 60)})
    keep = DirectoryKeep(disk, f"{tmp_path}/backup")

    with pytest.raises(OSError, match=f"physical offset {SIZE + 50} cannot be read"):
        take_backup(disk, root, keep, lambda: log_parts(disk, root), lambda: 5000)

    assert keep.points() == []


def test_a_store_that_is_not_finished_is_not_backed_up(store: Store) -> None:
    store.disk.make_directories("store/commitlog-unfinished")

    with pytest.raises(UnfinishedCopy):
        store.back_up()

    assert store.keep.points() == []


def test_files_that_expire_while_a_backup_runs_are_in_it(store: Store) -> None:
    """They were open before."""
    before = list(store.records)
    opened = iter([lambda: None, store.expire, lambda: None])

    def parts() -> object:
        found = log_parts(store.disk, store.root)
        next(opened)()
        return found

    take_backup(store.disk, store.root, store.keep, parts, lambda: 5000)  # type: ignore[arg-type]

    assert store.restored()[0] == before


def test_a_cut_of_the_log_does_not_reach_the_backup(store: Store) -> None:
    """A slave that follows another master truncates in a file that has a second name."""
    before = list(store.records)
    store.back_up()

    store.cut(decode_record(store.records[3]).physical_offset)
    store.put(1)

    assert verify_backup(store.keep)[1] == []
    assert store.restored()[0] == before


@pytest.mark.parametrize("number", [10, 12], ids=["the first record of the last file", "a later one"])
def test_damage_before_the_end_of_the_log_is_no_end_of_the_log(store: Store, number: int) -> None:
    """What follows it has been acknowledged, and would be missing in the point."""
    assert decode_record(store.records[10]).physical_offset % SIZE == 0
    store.put(3)
    offset = decode_record(store.records[number]).physical_offset
    store.damage(offset + BODY_AT)

    with pytest.raises(BackupRefused, match=f"no sound record at {offset}, .*verify"):
        store.back_up()

    assert store.keep.points() == []


def test_a_record_that_is_being_written_is_behind_the_end_of_the_log(store: Store) -> None:
    """Of several that are written at once, a reader may see the later ones first; the others follow while the backup pauses."""
    offset = decode_record(store.records[-2]).physical_offset
    byte = store.damage(offset + BODY_AT)

    done = store.back_up(lambda: store.write(offset + BODY_AT, byte))

    assert done.point.end == offset


def test_a_last_record_that_is_torn_is_behind_the_end_of_the_log(store: Store) -> None:
    """A slave whose master is gone keeps the beginning of a record for as long as no other one leads."""
    last = decode_record(store.records[-1]).physical_offset
    store.damage(last + BODY_AT)
    store.damage(decode_record(store.records[-2]).physical_offset + 35)  # its own physical offset, which ends no log

    assert store.back_up().point.end == last


def test_damage_between_two_points_is_no_moment(store: Store) -> None:
    """A store that ends before it would lack records that are older than the moment."""
    store.back_up()
    store.put(4)
    damaged = store.records[-1]
    store.put(10)
    store.damage(decode_record(damaged).physical_offset + BODY_AT)
    until_ms = store.now_ms
    store.back_up()

    with pytest.raises(BackupRefused, match=f"no sound record at {decode_record(damaged).physical_offset}"):
        store.restored(until_ms=until_ms)

    before_ms = decode_record(damaged).store_timestamp - 2
    assert store.restored("another", before_ms)[0] == store.records[:14]


def test_another_log_is_refused(store: Store) -> None:
    """One that was cut, and one that then went on with other records; the backup stays as it is."""
    before = list(store.records)
    store.back_up()
    store.cut(decode_record(store.records[10]).physical_offset)
    with pytest.raises(BackupRefused, match="it was cut"):
        store.back_up()

    store.put(5)

    with pytest.raises(BackupRefused, match="other bytes than the backup's newest point"):
        store.back_up()
    assert store.restored()[0] == before


@pytest.mark.parametrize("size", [SIZE // 2 * 3, 4 * SIZE])
def test_a_longer_log_in_files_of_another_size_is_refused(store: Store, size: int) -> None:
    """It has no file that begins where the last one of the backup does, or one of another size."""
    store.put(10)
    store.commit()
    store.back_up()
    other = Store(store.disk, "other", now_ms=2000, size=size)
    other.put(60)
    other.commit()

    with pytest.raises(BackupRefused, match="this is another log"):
        other.back_up()


def objects(disk: MemoryDisk) -> Iterator[str]:
    return (path for path in list(disk.files) if path.startswith("backup/"))


def flip(disk: MemoryDisk, path: str) -> None:
    file = disk.open(path)
    file.write(bytes([file.read(file.size // 2, 1)[0] ^ 1]), file.size // 2)


@pytest.mark.parametrize("damage", [flip, MemoryDisk.remove], ids=["a bit", "a file"])
def test_damage_of_any_object_is_found(store: Store, damage: Callable[[MemoryDisk, str], None]) -> None:
    """By the check, and by a restoration, which leaves a store that no broker opens."""
    store.back_up()
    for number, path in enumerate(objects(store.disk)):
        damaged = Store(attrs.evolve(store.disk, files=dict(store.disk.files)))
        content = damaged.disk.open(path)
        copy = damaged.disk.open("copy", create_size=0)
        copy.write(content.read(0, content.size), 0)
        damaged.disk.replace("copy", path)
        damage(damaged.disk, path)
        if path.endswith("manifest.json") and damage is MemoryDisk.remove:
            continue  # then there is no point

        assert len(verify_backup(damaged.keep)[1]) == 1, path
        with pytest.raises(DamagedBackup):
            damaged.restored(f"target-{number}")
        assert path.endswith("manifest.json") or damaged.disk.exists(f"target-{number}/commitlog-unfinished")


def test_a_point_whose_manifest_is_damaged_leaves_the_others_to_be_restored(store: Store) -> None:
    """Only a moment that needs it is refused; then the text names it."""
    first, moment = store.back_up(), store.now_ms
    store.put(5)
    store.commit()
    second = store.back_up()

    flip(store.disk, f"backup/{first.point.object_of('manifest.json')}")

    assert store.restored() == (store.records, 17)
    with pytest.raises(BackupRefused, match=rf"no point .* before this moment.*{first.point.name}.* is damaged"):
        store.restored("another", moment)
    flip(store.disk, f"backup/{second.point.object_of('manifest.json')}")
    with pytest.raises(DamagedBackup, match=first.point.name):
        store.restored("another")


def test_a_table_that_is_being_replaced_is_read_from_its_backup(store: Store) -> None:
    """For a moment a broker has only the `.bak`."""
    store.commit()
    store.disk.remove("store/config/consumerOffset.json")

    store.back_up()

    assert store.restored()[1] == 12


def test_a_damaged_table_is_refused_and_adds_no_point(store: Store) -> None:
    store.disk.open("store/config/consumerOffset.json").write(b"x", 0)

    with pytest.raises(BackupRefused, match=r"consumerOffset\.json cannot be read"):
        store.back_up()

    assert store.keep.points() == []


def test_a_directory_that_is_not_empty_is_no_target(store: Store) -> None:
    store.back_up()

    with pytest.raises(BackupRefused, match="store is not empty; nothing was written"):
        store.restored("store")


@pytest.mark.parametrize("seed", range(20))
def test_drawn_histories_are_restored(seed: int) -> None:
    """Puts, commits, expiry and points in any order; then every point and drawn moments between them."""
    rng = random.Random(seed)
    store, points = Store(), list[tuple[int, int, int]]()
    store.put(1)
    store.commit()
    for _ in range(40):
        step = rng.randrange(6)
        if step < 3:
            store.put(rng.randrange(1, 8))
        elif step == 3:
            store.commit()
        elif step == 4 and len(log_files(store.disk, "store")) > 2:
            store.expire()
        else:
            committed = offset_in(store.disk, "store")
            done = store.back_up()
            points.append((done.point.taken_ms, len(store.records), committed))
    if not points:
        pytest.skip("no point was drawn")
    history = store.records
    assert verify_backup(store.keep)[1] == []

    found, offset = store.restored("newest")
    assert found == history[points[-1][1] - len(found) : points[-1][1]]
    assert offset == points[-1][2]
    for number in range(10):
        moment = rng.randint(points[0][0], points[-1][0])
        _, _, offset_before = max(each for each in points if each[0] <= moment)
        try:
            found, offset = store.restored(f"drawn-{number}", moment)
        except BackupRefused as error:  # files expired before they were backed up
            assert "had expired before" in str(error)  # noqa: PT017
            continue
        kept = [record for record in history if decode_record(record).store_timestamp <= moment]
        assert found == kept[len(kept) - len(found) :]
        assert found or not kept
        assert offset == offset_before
        assert offset <= len(kept)


def test_a_backup_in_files_of_the_system_is_restored(tmp_path: Path) -> None:
    """Second names are those of the file system."""
    disk, store = RealDisk(), Store()
    store.put(12)
    (tmp_path / "store/commitlog").mkdir(parents=True)
    for file in log_files(store.disk, "store"):
        (tmp_path / file.path).write_bytes(file.read(0, file.size))
    root, keep = f"{tmp_path}/store", DirectoryKeep(disk, f"{tmp_path}/backup")

    done = take_backup(disk, root, keep, lambda: log_parts(disk, root), lambda: 5000)
    restore(disk, keep, f"{tmp_path}/restored", look_of)

    assert done.linked_bytes > 0
    assert disk.link_count(f"{root}/commitlog/{0:020d}") == 2
    assert disk.link_count(f"{tmp_path}/restored/commitlog/{0:020d}") == 1
    assert [bytes(each.bytes) for each in read_log(log_files(disk, f"{tmp_path}/restored"))] == store.records
