"""Term and vote in DLedger's own file, through every crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.ha.dledger.ledger.hard_state import HardStateFile, TermAndVote, decode_term_and_vote, encode_term_and_vote
from ledgermq.ha.errors import CorruptHardState
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import RealDisk

from .test_recovery import Fuse, PowerCutError, fused

GOLDEN = Path(__file__).parents[3] / "golden" / "dledger"


def file_on(disk: SimDisk) -> HardStateFile:
    disk.make_directories("store/dledger-n0")
    return HardStateFile(disk, "store/dledger-n0")


def test_the_file_of_a_java_node_is_read() -> None:
    """It was written by DLedger 0.3.1.2."""
    assert HardStateFile(RealDisk(), str(GOLDEN)).load() == TermAndVote(0, "n0")


def test_the_text_is_that_of_java() -> None:
    """Java reads the keys in any order."""
    assert encode_term_and_vote(TermAndVote(7, "n1")) == b"voteLeader=n1\ncurrTerm=7\n"
    assert encode_term_and_vote(TermAndVote(7)) == b"voteLeader=\ncurrTerm=7\n"


@given(st.integers(0, (1 << 63) - 1), st.text(st.characters(codec="ascii"), max_size=8))
def test_what_was_written_is_read(term: int, vote: str) -> None:
    """Whatever the ids are made of."""
    assert decode_term_and_vote(encode_term_and_vote(TermAndVote(term, vote))) == TermAndVote(term, vote)


@pytest.mark.parametrize("text", [b"", b"currTerm=\n", b"currTerm=-1\n", b"voteLeader=n1\n", b"currTerm=1x\n", b"\xff=1\n"])
def test_what_says_no_term_is_no_state(text: bytes) -> None:
    """A term of nothing would be a vote given twice."""
    assert decode_term_and_vote(text) is None


def test_the_newest_of_the_files_counts() -> None:
    """A Java node that was killed while it replaced the file leaves the backup, or the replacement, alone."""
    disk = SimDisk()
    file = file_on(disk)
    assert file.load() is None
    file.save(TermAndVote(3, "n1"))
    file.save(TermAndVote(4, ""))
    disk.remove(file.path)
    assert file.load() == TermAndVote(3, "n1")
    file.save(TermAndVote(5, ""))
    disk.replace(file.path, f"{file.path}.bak")
    with_vote = disk.open(f"{file.path}.tmp", create_size=0)
    with_vote.write(encode_term_and_vote(TermAndVote(5, "n2")), 0)
    assert file.load() == TermAndVote(5, "n2")


@pytest.mark.parametrize("backup", [False, True])
def test_an_unreadable_file_stops_the_start(*, backup: bool) -> None:
    """It says what to do instead. A good backup does not help: it is older than the file, and may lack its vote."""
    disk = SimDisk()
    file = file_on(disk)
    if backup:
        file.save(TermAndVote(3, ""))
        disk.replace(file.path, f"{file.path}.bak")
    disk.open(file.path, create_size=10).close()
    with pytest.raises(CorruptHardState, match="might vote twice"):
        file.load()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 30), st.integers(0, 1 << 32))
def test_a_saved_vote_survives_a_power_cut(calls: int, seed: int) -> None:
    """A cut while it is saved leaves the old state or the new one."""
    disk = SimDisk(random.Random(seed))
    file, saved = file_on(fused(disk, Fuse(calls))), 0
    try:
        for term in range(1, 6):
            file.save(TermAndVote(term, f"n{term}"))
            saved = term
    except PowerCutError:
        pass
    after = disk.power_cut(seed)
    after.make_directories("store/dledger-n0")
    found = HardStateFile(after, "store/dledger-n0").load()

    if saved or found is not None:
        assert found is not None
        assert found == TermAndVote(found.term, f"n{found.term}")
        assert saved <= found.term <= saved + 1
