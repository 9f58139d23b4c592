from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.message.json import loads
from ledgermq.store.json_file import JsonFile
from ledgermq.testing.logs import capture_logs
from ledgermq.world.disk import RealDisk


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(RealDisk(), str(tmp_path / "config" / "delayOffset.json"))


def test_nothing_saved_loads_as_none(file: JsonFile) -> None:
    assert file.load() is None


def test_what_was_saved_is_loaded_and_the_value_before_is_the_backup(file: JsonFile) -> None:
    file.save({"offsetTable": {1: 5}})
    file.save({"offsetTable": {1: 6}})

    assert file.load() == {"offsetTable": {"1": 6}}
    assert Path(file.backup_path).read_bytes() == b'{"offsetTable":{1:5}}'
    assert not Path(f"{file.path}.tmp").exists()


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\0" * 30, b'{"offsetTable":', b"\xff\xfe"])
def test_the_backup_helps_when_the_file_is_missing_empty_or_broken(file: JsonFile, content: bytes | None) -> None:
    file.save({"n": 1})
    file.save({"n": 2})
    Path(file.path).unlink()
    if content is not None:
        Path(file.path).write_bytes(content)

    with capture_logs() as events:
        value = file.load()

    assert value == {"n": 1}
    assert "config_read_from_backup" in [event["event"] for event in events]


def test_a_file_that_lost_its_content_does_not_pass_in_silence(file: JsonFile) -> None:
    """Without a `.bak` a table begins anew, which its owner must hear of."""
    file.save({"n": 1})
    Path(file.path).write_bytes(b"")

    with capture_logs() as events:
        assert file.load() is None
    assert [(event["event"], event["path"]) for event in events] == [("config_unreadable", file.path)]


def test_a_broken_file_does_not_push_out_the_good_backup(file: JsonFile) -> None:
    file.save({"n": 1})
    file.save({"n": 2})
    Path(file.path).write_bytes(b"{broken")

    file.save({"n": 3})

    assert file.load() == {"n": 3}
    assert Path(file.backup_path).read_bytes() == b'{"n":1}'


def test_a_file_of_java_with_tabs_and_bare_keys_is_read(file: JsonFile) -> None:
    Path(file.path).parent.mkdir()
    Path(file.path).write_text('{\n\t"offsetTable":{\n\t\t"T@g":{0:5,1:7\n\t\t}\n\t}\n}')

    assert file.load() == {"offsetTable": {"T@g": {"0": 5, "1": 7}}}


def test_a_left_over_half_written_file_is_replaced(file: JsonFile) -> None:
    Path(file.path).parent.mkdir()
    Path(f"{file.path}.tmp").write_bytes(b"half")

    file.save({"n": 1})

    assert file.load() == {"n": 1}


def test_a_value_that_this_process_has_written_is_not_read_again_before_it_becomes_the_backup(
    file: JsonFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of many megabytes would hold up the event loop; content that changed on the disk is still read and refused."""
    read: list[bytes] = []

    def reading(content: bytes) -> object:
        read.append(content)
        return loads(content)

    monkeypatch.setattr("ledgermq.store.json_file.loads", reading)
    for n in range(4):
        file.save({"n": n})
    assert read == []
    assert Path(file.backup_path).read_bytes() == b'{"n":2}'

    Path(file.path).write_bytes(b'{"n"!3}')
    file.save({"n": 4})

    assert read == [b'{"n"!3}']
    assert Path(file.backup_path).read_bytes() == b'{"n":2}'
