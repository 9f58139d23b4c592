"""The compiled path finds plain sends in received bytes, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq import native
from ledgermq.remoting.command import Wire

from .twins import send

pytestmark = pytest.mark.skipif(native.scan_sends is None, reason="the compiled path is not built")


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
