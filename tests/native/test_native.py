"""The compiled path finds plain sends in received bytes, and nothing else."""

from __future__ import annotations

import sys
import tracemalloc
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq import native
from ledgermq.remoting.command import Wire
from ledgermq.store.derived.index_file import packed
from ledgermq.store.derived.index_keys import KeyHashes

from .twins import send

pytestmark = pytest.mark.skipif(native.scan_sends is None, reason="the compiled path is not built")


def test_a_module_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checkout has it that was updated without being installed again: everything runs in Python."""
    monkeypatch.setitem(sys.modules, "ledgermq.native._native", ModuleType("_native"))
    monkeypatch.setattr(sys.modules["ledgermq.native._native"], "scan_sends", native.scan_sends, raising=False)
    spec = spec_from_file_location("ledgermq.native", native.__file__)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)

    assert loaded.scan_sends is loaded.group_records is loaded.hash_keys is loaded.pack_entries is None
    assert loaded.path_text() == "Python"


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize(
    "fields",
    [
        {"code": 10},
        {"code": 320, "m": "true"},
        {"m": "true"},
        {"flag": 1},
        {"flag": 4},
        {"b": None},
        {"b": "x" * 128},
        {"b": "Ä"},
        {"e": -1},
        {"e": "1_0"},
        {"e": " 1"},
        {"e": None},
        {"f": 4},
        {"f": 0x40},
        {"f": 0x10},
        {"g": "1" * 19},
        {"g": None},
        {"h": -1},
        {"h": 1 << 40},
        {"j": 3},
        {"sendNumber": "a.1.1.1"},
        {"unknown": "1"},
        {"i": "TAGS\1Ä\2"},
        {"i": "A\1\0\2"},
        {"i": "no separator"},
        {"i": "\1value\2"},
        {"i": "A\1\2"},
        {"i": "A\1b\1c\2"},
        {"i": "A\1b\2\2"},
        {"i": "x" * 9000 + "\1b\2"},
        *(
            {"i": f"{name}\1{value}\2"}
            for name, value in (
                ("DELAY", "3"),
                ("TRAN_MSG", "true"),
                ("TIMER_DELIVER_MS", "5"),
                ("TIMER_DELAY_SEC", "5"),
                ("TIMER_DELAY_MS", "5"),
                ("WAIT", "false"),
                ("LMQ_SEND", "a.1.1.1"),
                ("INNER_MULTI_DISPATCH", "%LMQ%q"),
                ("xINNER_MULTI_DISPATCH", "%LMQ%q"),
            )
        ),
    ],
    ids=str,
)
def test_a_run_ends_before_a_request_that_needs_a_closer_look(wire: Wire, fields: dict[str, Any]) -> None:
    """That request, and whatever follows it, is handled in Python."""
    assert native.scan_sends is not None
    first, plain = send(wire=wire), send(wire=wire, **fields)

    run = native.scan_sends(first + plain + first)

    assert run is not None
    assert (len(run), run.end) == (1, len(first))
    assert native.scan_sends(plain + first) is None


def test_a_run_that_waits_holds_no_second_copy_of_what_was_received() -> None:
    """Thousands may wait for a sync or for slaves, each with the bodies of its messages."""
    assert native.scan_sends is not None
    received = send(body=bytes(1 << 20))

    tracemalloc.start()
    run = native.scan_sends(received)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert run is not None
    assert held < 1 << 16


def test_a_json_header_that_is_written_in_another_way_ends_a_run() -> None:
    """Only what the compiled path understands whole may be taken; the Python path judges all else."""
    assert native.scan_sends is not None
    fields = b'"b":"T","e":"0","f":"0","g":"1","h":"0"'
    plain = b'{"code":310,"extFields":{' + fields + b'},"flag":0,"language":"JAVA","opaque":7,"version":401}'
    others = [
        plain.replace(b'"T"', b'"\\u0054"'),
        plain.replace(b'"T"', b"null"),
        plain.replace(b'"0"', b"0", 1),
        plain.replace(b'"e":"0"', b'"e":"0","e":"1"'),
        plain.replace(b'"opaque":7', b'"opaque":7,"opaque":8'),
        plain.replace(b'"opaque":7', b'"opaque":07'),
        plain.replace(b'"opaque":7', b'"opaque":2147483648'),
        plain.replace(b'"opaque":7', b'"opaque":7.0'),
        plain.replace(b'"opaque":7', b'"opaque":-0'),
        plain.replace(b'"JAVA"', b"0"),
        plain.replace(b'"flag":0', b'"remark":null'),
        plain.replace(b'"flag":0', b'"body":"x"'),
        plain[:-1],
        plain + b"x",
        b"[" + plain + b"]",
        b"",
    ]

    def scanned(header: bytes) -> int:
        assert native.scan_sends is not None
        run = native.scan_sends((4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        return 0 if run is None else len(run)

    assert scanned(plain) == scanned(b" \n" + plain.replace(b",", b" ,\t").replace(b":", b" : ") + b"\r\n") == 1
    assert scanned(plain.replace(b'"opaque":7', b'"opaque":-7')) == 1
    assert [header for header in others if scanned(header)] == []


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["T", "Ä", "T2"]),
        TEXT,
        TEXT | st.sampled_from(["", " a  b "]),
        st.integers(0, 50),
        st.integers(0, 1 << 42),
    )
)


@given(ENTRIES, st.integers(0, 50))
def test_keys_have_the_hashes_that_python_computes(entries: list[tuple[str, str, str, int, int]], end: int) -> None:
    """Of characters of any width, and without those of records that are indexed or out of order."""
    assert native.hash_keys is not None
    expected = KeyHashes().batch_of(entries, end)

    assert native.hash_keys(entries, end) == (expected.hashes(), expected.offsets, expected.times)


def test_a_key_with_the_least_hash_of_java_is_stored_as_zero() -> None:
    """Its absolute value does not fit, and Java's stays negative there."""
    assert native.hash_keys is not None
    entries = [("T", "polygenelubricants", "", 0, 0), ("", "", "", 0, 0)]
    expected = KeyHashes().batch_of(entries, 0)

    assert native.hash_keys(entries, 0)[0] == expected.hashes()


@given(
    st.lists(st.tuples(*[st.integers(0, 0x7FFFFFFF)] * 2, st.integers(0, 1 << 50), st.integers(0, 1 << 62))),
    st.integers(0, 1 << 50),
)
def test_index_entries_have_the_bytes_that_python_writes(entries: list[tuple[int, int, int, int]], begin: int) -> None:
    """Their times are seconds after the file's begin, from 0 to the largest that the field can hold."""
    assert native.pack_entries is not None
    hashes, previous, times, offsets = ([entry[at] for entry in entries] for at in range(4))

    assert native.pack_entries(hashes, offsets, times, begin, previous) == packed(hashes, offsets, times, begin, previous)


@pytest.mark.parametrize("change", [{2: 9}, {7: 4}, {7: 8}, {7: 12}, {10: "a.1.1.1"}, {3: (1 << 63) - 5}], ids=str)
def test_records_that_need_a_closer_look_are_not_grouped(change: dict[int, Any]) -> None:
    """Those of transactions, numbered ones, and those whose queue offsets do not follow each other."""
    assert native.group_records is not None
    record: native.Derivable = ("T", 0, 7, 1000, 100, -5, 1, 0, "u", "k", "")
    next_record: native.Derivable = ("T", 0, 8, 1100, 100, -5, 1, 0, "u", "k", "")
    other: Any = tuple(change.get(at, value) for at, value in enumerate(next_record))

    groups, indexed = native.group_records([record, next_record]) or ([], [])

    assert [(*group[:5], len(group[5])) for group in groups] == [("T", 0, 7, 1000, 1200, 40)]
    assert indexed == [("T", "u", "k", 1000, 1), ("T", "u", "k", 1100, 1)]
    assert native.group_records([record, other]) is None
