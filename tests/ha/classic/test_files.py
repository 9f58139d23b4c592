"""What replication keeps beside the store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ledgermq.ha.classic.epoch_checkpoint import encode_checkpoint
from ledgermq.ha.classic.epochs import UNKNOWN_WRITER, Epoch, EpochList
from ledgermq.ha.classic.files import EpochFile, load_node
from ledgermq.ha.errors import CorruptEpochs
from ledgermq.world.disk import RealDisk


def test_a_node_keeps_its_identity(tmp_path: Path) -> None:
    """Drawn once; two nodes differ."""
    first = load_node(RealDisk(), str(tmp_path / "a"), random.Random(1))

    assert load_node(RealDisk(), str(tmp_path / "a"), random.Random(2)) == first
    assert load_node(RealDisk(), str(tmp_path / "b"), random.Random(2)) != first
    assert len(first) == 16


@pytest.mark.parametrize("content", ["[]", '{"node": 5}', '{"node": "zz"}', '{"node": "00"}'])
def test_a_file_that_holds_no_identity_makes_a_new_node(tmp_path: Path, content: str) -> None:
    """Better a stranger than a broker that does not start."""
    (tmp_path / "haIdentity.json").write_text(content)

    assert len(load_node(RealDisk(), str(tmp_path), random.Random(1))) == 16


def test_epochs_are_read_as_they_were_saved(tmp_path: Path) -> None:
    """None saved is an empty list."""
    file = EpochFile(RealDisk(), str(tmp_path))
    epochs = EpochList((Epoch(1, 0, b"w" * 16, 1), Epoch(5, 4096, b"v" * 16, 3)))
    assert file.load() == EpochList()

    file.save(epochs)

    assert EpochFile(RealDisk(), str(tmp_path)).load() == epochs


@pytest.mark.parametrize("content", ["[]", '{"epochs": [{"number": 1}]}', '{"epochs": 3}', '{"epochs": [{"number": "x"}]}'])
def test_a_file_that_holds_no_epochs_is_named(tmp_path: Path, content: str) -> None:
    """Taking it for an empty history could empty a slave."""
    (tmp_path / "haEpochs.json").write_text(content)

    with pytest.raises(CorruptEpochs, match=r"haEpochs\.json"):
        EpochFile(RealDisk(), str(tmp_path)).load()


def test_rocketmqs_file_of_epochs_is_written_beside_ours_in_its_controller_mode(tmp_path: Path) -> None:
    """And from then on in every mode, because it would otherwise be an old one when the mode comes back."""
    epochs = EpochList((Epoch(1, 0, b"w" * 16, 2),))
    longer = EpochList((*epochs, Epoch(2, 50, b"v" * 16, 1)))
    theirs = tmp_path / "epochFileCheckpoint"

    EpochFile(RealDisk(), str(tmp_path)).save(epochs)
    assert not theirs.exists()
    EpochFile(RealDisk(), str(tmp_path), rocketmq=True).save(epochs)
    assert theirs.read_bytes() == b"1\n1725254278\n1-0\n"
    EpochFile(RealDisk(), str(tmp_path)).save(longer)

    assert EpochFile(RealDisk(), str(tmp_path)).load() == longer
    assert theirs.read_bytes() == encode_checkpoint(longer)


def test_epochs_that_a_broker_of_rocketmqs_has_added_are_read(tmp_path: Path) -> None:
    """Its file is the newer one; ours knows the writers of the epochs that both have."""
    file = EpochFile(RealDisk(), str(tmp_path), rocketmq=True)
    first, second = Epoch(1, 0, b"w" * 16, 2), Epoch(2, 50, b"v" * 16, 2)
    file.save(EpochList((first, second)))
    (tmp_path / "epochFileCheckpoint").write_bytes(b"3\n0\n1-0\n2-60\n5-90\n")

    assert file.load() == EpochList((first, Epoch(2, 60, UNKNOWN_WRITER, 1), Epoch(5, 90, UNKNOWN_WRITER, 1)))


def test_rocketmqs_file_of_epochs_alone_is_read(tmp_path: Path) -> None:
    """The directory of a broker of RocketMQ's can be opened."""
    (tmp_path / "epochFileCheckpoint").write_bytes(b"1\n1725254278\n1-0\n")

    assert EpochFile(RealDisk(), str(tmp_path)).load() == EpochList((Epoch(1, 0, UNKNOWN_WRITER, 1),))


def test_a_damaged_file_of_rocketmqs_is_read_from_its_backup(tmp_path: Path) -> None:
    """As RocketMQ does; without one the file is named."""
    theirs = tmp_path / "epochFileCheckpoint"
    theirs.write_bytes(b"1\n7\n1-0\n")

    with pytest.raises(CorruptEpochs, match=r"epochFileCheckpoint holds no list.*CRC 7"):
        EpochFile(RealDisk(), str(tmp_path)).load()
    theirs.with_suffix(".bak").write_bytes(b"1\n0\n1-0\n")
    assert EpochFile(RealDisk(), str(tmp_path)).load() == EpochList((Epoch(1, 0, UNKNOWN_WRITER, 1),))


def test_an_empty_list_leaves_no_older_one_for_rocketmq(tmp_path: Path) -> None:
    """RocketMQ reads the backup in place of an empty file."""
    file = EpochFile(RealDisk(), str(tmp_path), rocketmq=True)
    file.save(EpochList((Epoch(1, 0, b"w" * 16, 2),)))
    file.save(EpochList())

    assert (tmp_path / "epochFileCheckpoint").read_bytes() == b"0\n0\n"
    assert (tmp_path / "epochFileCheckpoint.bak").read_bytes() == b"0\n0\n"
