from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.errors import JsonError
from ledgermq.message.json import DEPTH_MAX, OF_STRANGERS_BYTES_MAX, dumps, dumps_strict, loads
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId

VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key != "$ref"), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:5,1:7}", {"0": 5, "1": 7}),
        ('{"offsetTable":{"T@g":{0:5,\n\t-1:7}}}', {"offsetTable": {"T@g": {"0": 5, "-1": 7}}}),
        ('{{"topic":"T","queueId":0}:5}', {'{"queueId":0,"topic":"T"}': 5}),
        ('{0:"a,1:b"}  ', {"0": "a,1:b"}),
    ],
)
def test_what_fastjson_writes_is_read(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_a_reference_gives_what_it_points_to() -> None:
    body = b'{"statsDay":{"sum":3,"list":[1,{"x":2}]},"statsHour":{"$ref":"$.statsDay"},0:{"$ref":"$.statsDay.list[1]"}}'

    value = loads(body)

    assert value["statsHour"] == {"sum": 3, "list": [1, {"x": 2}]}
    assert value["0"] == {"x": 2}


def test_a_reference_is_a_key_like_any_other_where_its_writer_makes_none() -> None:
    assert loads(b'{"a":{"$ref":"x"}}', references=False) == {"a": {"$ref": "x"}}
    assert loads(b'{{"$ref":"x"}:{"$ref":"y"}}', references=False) == {'{"$ref":"x"}': {"$ref": "y"}}


@pytest.mark.parametrize("body", [b'{"a":{"$ref":"$"}}', b'{"a":{"b":{"$ref":"$.a"}}}', b'{"a":{"$ref":"$.no"}}'])
def test_a_reference_to_nothing_or_to_what_holds_it_is_refused(body: bytes) -> None:
    with pytest.raises(JsonError):
        loads(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{0:5", b"{0 5}", b"{0:5}x", b"[1 2]", b"{0:}", b"{0:nope}", b'{0:"\x01', b"{[1]:2}", b"\xff"]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(JsonError):
        loads(body)


def test_nesting_beyond_the_bound_is_refused_not_overflowed() -> None:
    with pytest.raises(JsonError, match="nested"):
        loads(b"{{}:" * (DEPTH_MAX + 2) + b"1" + b"}" * (DEPTH_MAX + 2))


def test_references_nest_no_deeper_than_what_is_written_out() -> None:
    """A writer goes down as deep as the references lead, and so does a key that is one."""
    listed = ",".join(f'[{{"$ref":"$[{n - 1}]"}}]' for n in range(1, 300))
    body = f'[[],{listed},{{{{"$ref":"$[299]"}}:1}}]'.encode()

    with pytest.raises(JsonError, match="nested more than"):
        loads(body)


def test_references_to_references_cost_no_more_than_their_text(cpu_seconds: Callable[[], float]) -> None:
    doubled = ",".join(f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 60))
    before = cpu_seconds()

    with pytest.raises(JsonError, match="expand to more"):
        loads(f'{{"a0":[1,2],{doubled}}}'.encode())

    assert cpu_seconds() - before < 0.2  # a millisecond in truth; copy by copy it would be a second


@given(VALUES)
def test_both_written_forms_read_back(value: Any) -> None:
    assert json.loads(dumps_strict(value)) == value
    assert loads(dumps(value)) == value


@given(st.dictionaries(st.integers(0, 10**6), st.text()))
def test_integer_keys_stand_bare_and_read_back_as_text(value: dict[int, str]) -> None:
    written = dumps(value)

    assert loads(written) == {str(key): text for key, text in value.items()}
    if value:
        assert written.startswith(b"{%d:" % min(value))


def test_a_message_queue_stands_as_a_bare_key() -> None:
    queue = MessageQueue("T", "b", QueueId(3))

    assert dumps({queue: 5}) == b'{{"brokerName":"b","queueId":3,"topic":"T"}:5}'


@given(st.text(alphabet='{}[],:"0123456789ab\\ $', max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    with contextlib.suppress(JsonError):
        loads(text.encode())


def test_many_texts_are_written_as_fast_as_orjson_writes_them(cpu_seconds: Callable[[], float]) -> None:
    value = {"sourceIps": ["10.0.0.1"] * 200_000, "none": None}
    before = cpu_seconds()
    written = dumps(value)

    assert cpu_seconds() - before < 0.03  # 5 ms in truth; text by text it would be 100 ms
    assert written.startswith(b'{"sourceIps":["10.0.0.1",')


@pytest.mark.parametrize("unit", [b"[[],", b'{"a":1},', b"{1:2},", b"1,", b"{{}:", b'"x",', b'{"$ref":"$"},'])
def test_what_strangers_send_is_read_or_refused_in_time(unit: bytes, cpu_seconds: Callable[[], float]) -> None:
    """Half a mebibyte that is not strict JSON holds the event loop up no longer than one that is."""
    body = b"[" + unit * ((1 << 19) // len(unit))
    before = cpu_seconds()

    with pytest.raises(JsonError):
        loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)

    assert cpu_seconds() - before < 0.1


def test_strict_json_of_strangers_may_be_large() -> None:
    """The bound is only for what has to be read loosely."""
    body = b"[" + b'{"a":1},' * 10_000 + b"1]"

    assert len(loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)) == 10_001
    with pytest.raises(JsonError):
        loads(b"{1:" + body + b"}", loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    assert len(loads(b"{1:" + body + b"}")["1"]) == 10_001


@pytest.mark.parametrize("body", [b"1e999", b"{{}:1e999}", b"{1:-1e999}"])
def test_no_number_is_infinite(body: bytes) -> None:
    """Readers turn numbers into whole ones, which an infinite one has none of."""
    with pytest.raises(JsonError):
        loads(body)
