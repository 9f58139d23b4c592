"""Our dialect: where two logs part, and what a slave gives up to go on."""

from __future__ import annotations

import pytest

from ledgermq.ha.classic.authenticated import AuthenticatedSlave
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import encode_report
from ledgermq.ha.classic.protocol import LogAbandoned, TailDropped
from ledgermq.ha.errors import HaProtocolError

from .pairs import SEGMENT, Log, Pair, ours_master, ours_slave


def test_a_slave_with_bytes_that_the_master_lost_drops_them_and_says_what_was_promised() -> None:
    """The master came back shorter; what lay behind the common point goes, and the fact names what had been answered."""
    old = EpochList((Epoch(1, 0, b"M" * 16, 2),))
    master_log = Log.of(800)
    slave_log = Log.of(1000)
    master_log.content += b"new"
    new = EpochList((*old.entries, Epoch(2, 800, b"M" * 16, 2)))
    pair = Pair(ours_master(master_log, new), master_log, ours_slave(slave_log, old, confirmed=950), slave_log)

    pair.settle()

    assert pair.slave_facts[0] == TailDropped(800, 1000, confirmed_end=950, promised_end=1000)
    assert slave_log.content == master_log.content
    assert isinstance(pair.slave, AuthenticatedSlave)
    assert pair.slave.epochs == new
    assert pair.slave.confirmed == 800, "what is gone is not confirmed any more"
    assert pair.acked == 803


def test_bytes_that_nobody_was_promised_go_without_a_claim() -> None:
    """Written by an ASYNC_MASTER, confirmed by nobody."""
    old = EpochList((Epoch(1, 0, b"M" * 16, 1),))
    new = EpochList((*old.entries, Epoch(2, 800, b"M" * 16, 1)))
    master_log, slave_log = Log.of(800), Log.of(1000)
    pair = Pair(ours_master(master_log, new), master_log, ours_slave(slave_log, old), slave_log)

    pair.settle()

    assert pair.slave_facts[0] == TailDropped(800, 1000, confirmed_end=800, promised_end=800)


def test_an_old_master_rejoins_the_slave_that_took_over() -> None:
    """It had written on alone; what the new master never got goes."""
    common = EpochList((Epoch(1, 0, b"S" * 16, 1),))
    new_master_log, old_master_log = Log.of(900), Log.of(1000)
    new_master_log.content += Log.of(300, seed=7).content
    epochs = EpochList((*common.entries, Epoch(2, 900, b"N" * 16, 1)))
    slave = ours_slave(old_master_log, EpochList((*common.entries, Epoch(2, 950, b"S" * 16, 1))))
    pair = Pair(ours_master(new_master_log, epochs), new_master_log, slave, old_master_log)

    pair.settle()

    assert old_master_log.content == new_master_log.content


def test_a_slave_too_far_behind_is_filled_anew() -> None:
    """Its log is a true beginning of the master's, but the master has deleted what follows: all of it goes."""
    master_log, slave_log = Log.of(3 * SEGMENT), Log.of(1000)
    master_log.start, master_log.content = SEGMENT, master_log.content[SEGMENT:]
    pair = Pair(ours_master(master_log), master_log, ours_slave(slave_log, from_first=True), slave_log)

    pair.settle()

    fact = pair.slave_facts[0]
    assert isinstance(fact, LogAbandoned)
    assert (fact.start, fact.old_end, fact.diverged) == (SEGMENT, 1000, False)
    assert (slave_log.start, slave_log.content) == (master_log.start, master_log.content)


@pytest.mark.parametrize("point", [500, 1000])
def test_a_slave_that_parts_from_its_master_before_its_own_log_begins_gives_all_of_it_up(point: int) -> None:
    """Nothing of it is in the master's log, and it says what had been promised of it; at its very beginning too."""
    old = EpochList((Epoch(1, 0, b"M" * 16, 2),))
    new = EpochList((*old.entries, Epoch(2, point, b"M" * 16, 2)))
    master_log, slave_log = Log.of(2 * SEGMENT + 5), Log.of(800, start=1000)
    pair = Pair(ours_master(master_log, new), master_log, ours_slave(slave_log, old, confirmed=1700), slave_log)

    pair.settle()

    assert pair.slave_facts[0] == LogAbandoned(
        2 * SEGMENT, old_min=1000, old_end=1800, diverged=True, confirmed_end=1700, promised_end=1800
    )
    assert (slave_log.start, slave_log.max_offset) == (2 * SEGMENT, master_log.max_offset)


def test_sync_from_first_gives_an_empty_slave_the_whole_log() -> None:
    """The slave asks for it; the master's default is the last segment."""
    master_log, slave_log = Log.of(2 * SEGMENT + 5), Log()
    pair = Pair(ours_master(master_log), master_log, ours_slave(slave_log, from_first=True), slave_log)

    pair.settle()

    assert slave_log.content == master_log.content


def test_a_first_report_other_than_the_agreed_one_is_refused() -> None:
    """A slave cannot claim more, or other, than its hello proved."""
    log = Log.of(50)
    pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
    pair.give_master(100)
    pair.give_slave(1000)
    pair.give_master(1000)

    pair.to_master += encode_report(100, 0)
    with pytest.raises(HaProtocolError, match="wants to go on at 100, its log parts from ours at 50"):
        pair.give_master(1000)
    assert pair.master_facts == []
