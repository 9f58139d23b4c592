"""What replication keeps beside the store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ledgermq.ha.classic.epochs import Epoch, EpochList
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
