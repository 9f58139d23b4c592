"""The files in which a broker keeps the id that the controller has given it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.controller.identity import Identity, IdentityFiles, decode_identity
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.files import read_file, replace_file

names = st.text("abcXYZ09-_|%", min_size=1, max_size=20)


@pytest.fixture
def files() -> IdentityFiles:
    return IdentityFiles(SimDisk(random.Random(0)), "store")


@given(names, names, st.integers(1, (1 << 63) - 1), st.sampled_from(["", "10.0.0.1:10911;1700000000000"]))
def test_what_is_encoded_is_decoded(cluster: str, name: str, broker_id: int, check_code: str) -> None:
    identity = Identity(cluster, name, broker_id, check_code)

    assert decode_identity(identity.encoded(), temporary=bool(check_code)) == identity


def test_the_files_are_those_of_rocketmq(files: IdentityFiles) -> None:
    files.save(Identity("DefaultCluster", "broker-a", 2, "10.0.0.1:10911;1700000000000"))
    assert read_file(files.disk, "store/brokerIdentity-temp") == b"DefaultCluster#broker-a#2#10.0.0.1:10911;1700000000000"

    files.save(Identity("DefaultCluster", "broker-a", 2))
    assert read_file(files.disk, "store/brokerIdentity") == b"DefaultCluster#broker-a#2"
    assert not files.disk.exists("store/brokerIdentity-temp")


def test_an_interrupted_application_goes_on_with_its_check_code(files: IdentityFiles) -> None:
    applied = Identity("c", "broker-a", 2, "10.0.0.1:10911;1700000000000")
    files.save(applied)

    assert files.load("c", "broker-a") == applied


def test_the_identity_of_another_broker_is_refused(files: IdentityFiles) -> None:
    files.save(Identity("c", "broker-a", 2))

    with pytest.raises(WrongHaSetting, match="belongs to c/broker-a, and the configuration says c/broker-b"):
        files.load("c", "broker-b")


@pytest.mark.parametrize("line", [b"", b"c#broker-a", b"c#broker-a#0", b"c#broker-a#x", b"c#broker-a#1#code", b"\xff#a#1"])
def test_a_damaged_file_is_refused_and_not_taken_for_a_new_broker(files: IdentityFiles, line: bytes) -> None:
    files.disk.make_directories("store")
    replace_file(files.disk, files.path, line)

    with pytest.raises(WrongHaSetting, match="is damaged"):
        files.load("c", "broker-a")


def test_a_crash_is_known_until_the_controller_knows_it(files: IdentityFiles) -> None:
    """Also when the next run stops in order, and the disk loses power."""
    files.disk.make_directories("store")
    assert not files.note_crash()
    files.disk.open("store/abort", create_size=0).close()
    assert files.note_crash()
    files.disk.remove("store/abort")
    files.disk.sync_directory("store")
    disk = files.disk
    assert isinstance(disk, SimDisk)
    files.disk = disk.power_cut(1)
    assert files.note_crash()

    files.forget_crash()

    assert not IdentityFiles(files.disk, "store").note_crash()
