"""Our handshake: who may join, and what a stranger learns."""

from __future__ import annotations

import pytest

from ledgermq.ha.classic.authenticated import AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import TAG, NodeIdentity
from ledgermq.ha.classic.protocol import MasterCore, TransferLimits
from ledgermq.ha.envelopes import KIND_HELLO, envelope
from ledgermq.ha.errors import HaError, HaProtocolError, HaRefused

from .pairs import LIMITS, MASTER, SECRET, SLAVE, Log, Pair, ours_master, ours_slave


def refused(slave: AuthenticatedSlave, slave_log: Log, master: MasterCore, master_log: Log) -> tuple[str, str]:
    """Run a handshake that fails; return what either side says."""
    pair = Pair(master, master_log, slave, slave_log)
    with pytest.raises(HaRefused) as master_says:
        pair.settle()
    assert pair.master_facts == []
    pair.to_slave += master.farewell()
    with pytest.raises(HaRefused) as slave_says:
        pair.settle()
    return str(master_says.value), str(slave_says.value)


def test_a_slave_without_the_secret_is_refused() -> None:
    """It learns nothing of the log, and both sides name the key."""
    log = Log()

    both = refused(ours_slave(log, secret=b"guess"), log, ours_master(Log.of(100)), Log.of(100))

    assert all("haSecret" in text for text in both)


@pytest.mark.parametrize(
    ("identity", "limits", "text"),
    [
        (NodeIdentity("other", "b", 1, b"S" * 16), LIMITS, "brokerClusterName"),
        (NodeIdentity("c", "other", 1, b"S" * 16), LIMITS, "brokerName"),
        (NodeIdentity("c", "b", 0, b"S" * 16), LIMITS, "brokerId"),
        (NodeIdentity("c", "b", 1, b"M" * 16), LIMITS, "copy of the master's"),
        (SLAVE, TransferLimits(segment_size=8192), "mappedFileSizeCommitLog"),
    ],
    ids=["cluster", "broker name", "broker id", "node", "segment size"],
)
def test_a_slave_that_cannot_belong_here_is_refused_with_what_to_do(
    identity: NodeIdentity, limits: TransferLimits, text: str
) -> None:
    """The same sentence reaches the logs of both nodes."""
    log, master_log = Log(), Log.of(100)

    master_says, slave_says = refused(
        ours_slave(log, identity=identity, limits=limits), log, ours_master(master_log), master_log
    )

    assert text in master_says
    assert master_says in slave_says


def test_a_log_without_a_common_epoch_is_refused_not_emptied() -> None:
    """A store that never belonged to this master is left alone."""
    log, master_log = Log.of(100), Log.of(100)
    slave = ours_slave(log, EpochList((Epoch(1, 0, b"X" * 16, 1),)))

    master_says, _ = refused(slave, log, ours_master(master_log), master_log)

    assert "share no epoch" in master_says
    assert log.content == Log.of(100).content


def test_a_master_without_the_secret_is_refused_by_the_slave() -> None:
    """A welcome must prove the secret too."""
    log = Log()
    slave = ours_slave(log)
    pair = Pair(ours_master(Log.of(100)), Log.of(100), slave, log)
    pair.give_master(100)
    pair.give_slave(1000)
    pair.give_master(1000)
    pair.to_slave[-1] ^= 1

    with pytest.raises(HaRefused, match="haSecret"):
        pair.give_slave(1000)


def test_a_recorded_hello_does_not_open_another_connection() -> None:
    """The proof covers the challenge of this connection."""
    log = Log()
    pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
    pair.give_master(100)
    pair.give_slave(1000)
    recorded = bytes(pair.to_master)

    other = AuthenticatedMaster(Log.of(100), LIMITS, lambda _: 0, 0.0, MASTER, SECRET, b"9" * 32, EpochList(), lambda: 0)
    other.receive(TAG, 0.0)
    with pytest.raises(HaRefused, match="does not know the secret"):
        other.receive(recorded, 0.0)


def test_a_memory_bomb_is_refused_before_it_is_held() -> None:
    """An announced size beyond what a hello can have ends the connection."""
    master = ours_master(Log.of(100))
    master.receive(TAG, 0.0)

    with pytest.raises(HaProtocolError):
        master.receive(envelope(TAG, KIND_HELLO, b"x" * 70_000)[:16], 0.0)


def test_a_handshake_that_does_not_end_is_cut_after_ten_seconds() -> None:
    """A peer that says nothing, or half a hello, holds a connection for no longer."""
    master = ours_master(Log.of(100))
    master.receive(TAG, 9.0)

    assert master.silent_for(10.0) is None
    assert master.silent_for(10.5) == 10.5


def test_any_damaged_byte_of_the_handshake_is_noticed() -> None:
    """No flipped byte of a hello leads to a welcome."""

    def hello_sent() -> Pair:
        log = Log.of(50)
        pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
        pair.give_master(100)
        pair.give_slave(1000)
        return pair

    for at in range(len(hello_sent().to_master)):
        pair = hello_sent()
        pair.to_master[at] ^= 0x41
        try:
            pair.give_master(1000)
        except HaError:
            continue
        assert not pair.to_slave, "at most it waits for more"


def test_a_slave_does_not_follow_a_master_that_was_deposed() -> None:
    """The controller has elected for epoch 2, and this master is still that of epoch 1."""
    log, master_log = Log.of(50), Log.of(100)
    slave = ours_slave(log)
    slave.epoch_min = 2
    pair = Pair(ours_master(master_log), master_log, slave, log)

    with pytest.raises(HaRefused, match="the master has epoch 1, and the master of epoch 2 is to be followed"):
        pair.settle()
    assert log.content == Log.of(50).content


def test_an_elected_master_refuses_a_slave_of_a_later_epoch() -> None:
    """Another master was elected meanwhile, and the slave may have what that one acknowledged."""
    log, master_log = Log.of(100), Log.of(100)
    slave = ours_slave(log, EpochList((Epoch(1, 0, b"M" * 16, 1), Epoch(2, 50, b"N" * 16, 1))))
    master = ours_master(master_log)
    assert isinstance(master, AuthenticatedMaster)
    master.elected = True

    master_says, _ = refused(slave, log, master, master_log)

    assert master_says == "the slave has epoch 2, and this master was elected for epoch 1"
    assert log.content == Log.of(100).content
