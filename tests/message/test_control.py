"""Events of the broker in the log: records that carry them, and contents of other shapes."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.message.control import (
    CONTROL_TOPIC,
    GROUP_DELETED,
    QUEUES_END,
    TOPIC_DELETED,
    Control,
    control_message,
    decode_control,
    deleted_group_of,
    deleted_topic_of,
    deletion_of,
    ended_queues_of,
    group_deletion_of,
    is_control,
    queues_end_of,
)
from ledgermq.message.errors import CorruptRecord
from ledgermq.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from ledgermq.message.layout import encode_host, encode_records, topic_field
from ledgermq.message.message import IncomingMessage

HOST = encode_host("127.0.0.1", 10911)


def record_of(message: IncomingMessage) -> bytes:
    (record,) = encode_records([message], [topic_field(message.topic.encode())], [0], 1_700_000_000_000, HOST)
    return record


@pytest.mark.parametrize(
    "control",
    [
        deletion_of("T", {0: 7, 3: 1 << 40}),
        queues_end_of([("T", 0, 7), ("Tür", 1, 0)]),
        group_deletion_of("g", offsets=True),
        Control("a kind of a later version", {"x": [1, None, "ü"]}),
    ],
)
def test_an_event_reads_back_from_its_record(control: Control) -> None:
    """Whatever it carries; readers themselves ignore kinds that they do not know."""
    assert decode_control(record_of(control_message(control, 1, HOST))) == control


def test_a_record_is_an_event_by_topic_and_transaction_type_together() -> None:
    """So a reader that knows no events skips it, and a message of a client is never taken for one."""
    assert is_control(CONTROL_TOPIC, TRANSACTION_ROLLBACK | 1)
    assert not is_control(CONTROL_TOPIC, TRANSACTION_COMMIT)
    assert not is_control("T", TRANSACTION_ROLLBACK)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'"text"'])
def test_a_body_that_is_no_object_is_corrupt(body: bytes) -> None:
    """The error names the kind, so that an operator knows what is lost."""
    good = control_message(Control("kind_x", {}), 1, HOST)
    bad = IncomingMessage(good.topic, 0, body, good.properties, 0, good.sys_flag, 1, HOST)

    with pytest.raises(CorruptRecord, match="kind_x"):
        decode_control(record_of(bad))


def test_a_message_of_a_client_is_no_event() -> None:
    with pytest.raises(CorruptRecord, match="no control record"):
        decode_control(record_of(IncomingMessage("T", 0, b"{}", "", 0, 0, 1, HOST)))
    with pytest.raises(CorruptRecord, match="no control record"):
        decode_control(b"\0" * 100)


def test_the_content_of_each_event_reads_back() -> None:
    """With queue ids as numbers, though JSON has them as text."""
    assert deleted_topic_of(deletion_of("T", {0: 7, 12: 0})) == ("T", {0: 7, 12: 0})
    assert ended_queues_of(queues_end_of([("T", 0, 7)])) == [("T", 0, 7)]
    assert deleted_group_of(group_deletion_of("g", offsets=False)) == ("g", False)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"topic": 1},
        {"topic": "T", "queues": []},
        {"topic": "T", "queues": {"-1": 0}},
        {"topic": "T", "queues": {"0": True}},
    ],
)
def test_a_deletion_of_another_shape_is_corrupt(content: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match=TOPIC_DELETED):
        deleted_topic_of(Control(TOPIC_DELETED, content))


@pytest.mark.parametrize("content", [{}, {"queues": {}}, {"queues": [1]}, {"queues": [["T", 0]]}, {"queues": [["T", 0, True]]}])
def test_ends_of_queues_of_another_shape_are_corrupt(content: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match=QUEUES_END):
        ended_queues_of(Control(QUEUES_END, content))


@pytest.mark.parametrize("content", [{}, {"group": 1}, {"group": "g", "offsets": 1}])
def test_a_deletion_of_a_group_of_another_shape_is_corrupt(content: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match=GROUP_DELETED):
        deleted_group_of(Control(GROUP_DELETED, content))
