"""Finding the file of a physical offset, in plain segments and in those of a ledger."""

from __future__ import annotations

from pathlib import Path

from ledgermq.pipeline.log_files import LEDGER_HEADER_SIZE, SegmentFiles

from .stores import StoreFiles, interleaved


def test_a_physical_offset_is_in_one_file_or_in_none(tmp_path: Path) -> None:
    """A ledger continues plain segments; between files that retention deleted there is nothing."""
    files = StoreFiles(tmp_path, segment_size=4096)
    files.append(interleaved(60))
    last = max((tmp_path / "commitlog").iterdir())
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    last.rename(tmp_path / "dledger-n0" / "data" / last.name)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    log = SegmentFiles(str(tmp_path))
    log.refresh()

    in_ledger = log.find(int(last.name))

    assert log.min_offset == 4096
    assert log.find(0) is None
    assert log.find(log.files[-1].end) is None
    assert in_ledger is not None
    assert (in_ledger.start, in_ledger.header_size) == (int(last.name), LEDGER_HEADER_SIZE)
    assert {file.header_size for file in log.files[:-1]} == {0}
    assert all(log.find(file.start) == log.find(file.end - 1) == file for file in log.files)


def test_a_file_that_took_the_name_of_another_is_mapped_anew(tmp_path: Path) -> None:
    """Maps are kept between tasks, and a store may have been replaced meanwhile."""
    files = StoreFiles(tmp_path, segment_size=4096)
    files.append(interleaved(5))
    log = SegmentFiles(str(tmp_path))
    log.refresh()
    (file,) = log.files
    before = log.piece(file)
    replaced = Path(file.path).with_suffix(".new")
    replaced.write_bytes(b"#" * 4096)
    replaced.rename(file.path)

    after = log.piece(file)

    assert before is not None
    assert after is not None
    assert bytes(after.bytes[:1]) == b"#" != bytes(before.bytes[:1])


def test_records_are_recognised_by_queue_offset_and_place(tmp_path: Path) -> None:
    """A unit of another queue, offset or size does not lead to the record."""
    files = StoreFiles(tmp_path)
    files.append(interleaved(9))
    log = SegmentFiles(str(tmp_path))
    log.refresh()
    message, offset, position, size = files.placed[7]

    assert log.holds(message.queue_id, offset, position, size)
    assert not log.holds(message.queue_id + 1, offset, position, size)
    assert not log.holds(message.queue_id, offset + 1, position, size)
    assert not log.holds(message.queue_id, offset, position, size - 1)
    assert log.store_timestamp(position) == message.store_timestamp
    assert log.store_timestamp(files.position) is None
