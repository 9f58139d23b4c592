"""Which sends are repetitions, as a function of the log."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from ledgermq.broker.tables import send_table
from ledgermq.broker.tables.send_table import EXPIRY_MS, SendTable, Verdict
from ledgermq.message.send_number import SendNumber


def _number(sequence: int, oldest: int = 0, *, epoch: int = 0, producer_id: str = "p") -> SendNumber:
    return SendNumber(producer_id, epoch, sequence, oldest)


def _table(*sequences: int) -> SendTable:
    table = SendTable()
    for at, sequence in enumerate(sequences):
        table.apply(_number(sequence), at * 100, 100, at)
    return table


def _verdict(table: SendTable, number: SendNumber) -> Verdict:
    return table.look_up(number)[0]


def test_a_send_that_is_in_the_log_is_repeated_and_has_its_place() -> None:
    """In whatever order concurrent sends arrived; sends between them that went to other brokers are new here."""
    table = _table(3, 7, 5, 1)

    assert [table.look_up(_number(sequence)) for sequence in (1, 3, 5, 7)] == [
        (Verdict.REPEATED, (300, 100)),
        (Verdict.REPEATED, (0, 100)),
        (Verdict.REPEATED, (200, 100)),
        (Verdict.REPEATED, (100, 100)),
    ]
    assert {_verdict(table, _number(sequence)) for sequence in (0, 2, 4, 6, 8)} == {Verdict.NEW}
    assert _verdict(table, _number(3, producer_id="q")) is Verdict.NEW


def test_a_producer_that_was_replaced_is_fenced() -> None:
    """By a fence, or by a message of a higher epoch; and the sequences of the new epoch begin anew."""
    table = _table(1, 2)

    table.fence("p", 1, 10)

    assert _verdict(table, _number(1)) is _verdict(table, _number(9)) is Verdict.FENCED
    assert _verdict(table, _number(1, epoch=1)) is Verdict.NEW
    table.apply(_number(1, epoch=2), 300, 100, 11)
    assert _verdict(table, _number(2, epoch=1)) is Verdict.FENCED
    table.fence("p", 1, 12)
    table.apply(_number(5, epoch=1), 400, 100, 12)
    assert _verdict(table, _number(5, epoch=2)) is Verdict.NEW


def test_what_the_producer_will_not_repeat_is_forgotten() -> None:
    """Its repetition would be refused, not stored."""
    table = _table(1, 2, 3)

    table.apply(_number(4, oldest=3), 300, 100, 4)

    assert [_verdict(table, _number(sequence, oldest=sequence)) for sequence in (1, 2, 3, 4, 5)] == [
        Verdict.FORGOTTEN,
        Verdict.FORGOTTEN,
        Verdict.REPEATED,
        Verdict.REPEATED,
        Verdict.NEW,
    ]


def test_of_more_pending_sends_than_the_window_the_lowest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_table, "WINDOW_MAX", 3)

    table = _table(1, 2, 3, 4, 5)

    assert [_verdict(table, _number(sequence)) for sequence in (1, 2, 3, 4, 5)] == [Verdict.FORGOTTEN] * 2 + [
        Verdict.REPEATED
    ] * 3


@pytest.mark.parametrize("bound", ["PRODUCERS_MAX", "SENDS_MAX"])
def test_at_its_bounds_the_table_forgets_the_producer_that_has_been_silent_for_longest(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """And says since when it is complete, so that nobody takes a producer that was forgotten for one that is new."""
    monkeypatch.setattr(send_table, bound, 2)
    table = SendTable()
    for at, producer_id in enumerate(["a", "b"]):
        table.apply(_number(1, 1, producer_id=producer_id), at, 1, at + 10)
    table.apply(_number(2, 2, producer_id="a"), 2, 1, 12)

    table.apply(_number(1, 1, producer_id="c"), 3, 1, 13)

    assert list(table.producers) == ["a", "c"]
    assert table.complete_since_ms == 11


def test_producers_expire_by_the_timestamps_in_the_log() -> None:
    table = _table(1)
    table.apply(_number(1, producer_id="q"), 100, 100, 1000)

    table.apply(_number(1, producer_id="r"), 200, 100, EXPIRY_MS + 1)

    assert list(table.producers) == ["q", "r"]


def test_messages_that_were_cut_off_the_log_are_new_again() -> None:
    table = _table(1, 2, 3)

    table.cut(100)

    assert [_verdict(table, _number(sequence)) for sequence in (1, 2, 3)] == [Verdict.REPEATED, Verdict.NEW, Verdict.NEW]


def test_the_entry_of_an_older_log_is_replaced_by_that_of_the_present_one() -> None:
    """A file may be about bytes that a crash has taken back; the log is applied again from before them."""
    table = SendTable()
    table.apply(_number(1), 500, 100, 1)

    table.apply(_number(1), 400, 90, 1)
    table.apply(_number(1), 600, 80, 1)

    assert table.look_up(_number(1)) == (Verdict.REPEATED, (400, 90))
    table.remove(_number(1))
    assert _verdict(table, _number(1)) is Verdict.NEW


def _content(table: SendTable) -> Any:
    return orjson.loads(orjson.dumps(table.to_json()))


@pytest.mark.parametrize("seed", range(20))
def test_a_file_and_the_rest_of_the_log_make_the_table_that_the_whole_log_makes(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Wherever the file was taken, at small bounds; and what is applied twice counts once."""
    for name, bound in (("WINDOW_MAX", 4), ("PRODUCERS_MAX", 5), ("SENDS_MAX", 12), ("EXPIRY_MS", 60)):
        monkeypatch.setattr(send_table, name, bound)
    rng = random.Random(seed)
    log: list[tuple[SendNumber, int]] = []
    newest: dict[str, int] = {}
    for at in range(300):
        name = rng.choice("abcdefgh")
        newest[name] = sequence = max(newest.get(name, 5) + rng.randrange(-2, 4), 0)
        log.append(
            (SendNumber(name, at // 100 if rng.random() < 0.9 else 0, sequence, max(sequence - rng.randrange(8), 0)), at)
        )

    def apply(table: SendTable, part: list[tuple[SendNumber, int]]) -> None:
        for number, at in part:
            if rng.random() < 0.05:
                table.fence(number.producer_id, number.epoch, at)
            table.apply(number, at * 10, 10, at)

    state = rng.getstate()
    whole = SendTable()
    apply(whole, log)
    rng.setstate(state)
    cut = random.Random(seed + 1).randrange(300)
    first = SendTable()
    apply(first, log[:cut])
    restored = SendTable()
    restored.load(_content(first))
    apply(restored, log[cut:])

    assert _content(restored) == _content(whole)
    assert sum(len(each.sends) for each in whole.producers.values()) <= 12
