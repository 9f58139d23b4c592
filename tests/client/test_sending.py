"""From messages to frames and from answers to results."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.errors import BadAnswer, InvalidArgument, MessageIllegal, MessageTooLarge
from ledgermq.client.sending import (
    SendStatus,
    encode_messages,
    frame_parts,
    json_text,
    property_text,
    result_of,
    results_of,
    target_of,
)
from ledgermq.message.batch import decode_batch
from ledgermq.message.message import Message, MessageQueue
from ledgermq.message.properties import decode_properties
from ledgermq.remoting.command import RemotingCommand, decode_command
from ledgermq.remoting.frame import FrameReader
from ledgermq.world.network import Address

QUEUE = MessageQueue("%RETRY%g", 'b"1', 3)
ADDRESS = Address("10.0.0.1", 10911)
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), max_size=20)


@given(text=TEXTS, sys_flag=st.integers(0, 1 << 20), flag=st.integers(-(1 << 31), (1 << 31) - 1), body=st.binary(max_size=100))
def test_a_template_gives_the_frame_that_the_codec_reads(text: str, sys_flag: int, flag: int, body: bytes) -> None:
    """Whatever is in names and properties, quotes and per cent signs too."""
    parts = frame_parts(target_of("g%d", QUEUE, ADDRESS).single, sys_flag, 1700, flag, json_text(text), 77, body)

    ((wire, header, frame_body),) = FrameReader().feed(b"".join(parts))
    command = decode_command(wire, header, frame_body)
    assert (command.code, command.opaque, command.flag, command.body) == (310, 77, 0, body)
    assert command.ext == {
        "a": "g%d",
        "b": "%RETRY%g",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": str(sys_flag),
        "g": "1700",
        "h": str(flag),
        "i": text,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": 'b"1',
    }
    assert orjson.loads(header)["language"] == "PYTHON"


def test_a_batch_says_so_and_oneway_as_well() -> None:
    """Code 320 with its flag; bit 1 of the header's flag."""
    header = frame_parts(target_of("g", QUEUE, ADDRESS).batch, 0, 0, 0, b'""', 1, b"", oneway=True)[0][8:]

    command = decode_command(0, header, b"")
    assert (command.code, command.ext["m"], command.is_oneway) == (320, "true", True)


@given(st.dictionaries(st.text("abcXYZ", min_size=1), TEXTS.filter(bool)), TEXTS.filter(bool), st.integers(1, 18))
def test_properties_come_back(properties: dict[str, str], tag: str, level: int) -> None:
    """All of a message's fields are in the property string."""
    text = property_text(Message("t", b"", tag=tag, keys=["k1", "k2"], delay_level=level, properties=properties), "ID", "key")

    assert decode_properties(text) == {
        "UNIQ_KEY": "ID",
        "WAIT": "true",
        "TAGS": tag,
        "KEYS": "k1 k2",
        "DELAY": str(level),
        "__SHARDINGKEY": "key",
        **properties,
    }


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"", tag="a\x01b"),
        Message("t", b"", properties={"a": "b\x02"}),
        Message("t", b"", properties={"a\x01": "b"}),
        Message("t", b"", properties={"TAGS": "b"}),
        Message("t", b"", keys=["with space"]),
        Message("t", b"", keys=[""]),
        Message("t", b"", keys="text"),
        Message("t", b"", delay_level=19),
        Message("t", b"", delay_level=-1),
    ],
)
def test_what_would_be_misread_is_refused(message: Message) -> None:
    """No escaping exists in property strings."""
    with pytest.raises(InvalidArgument):
        property_text(message, "ID")


def test_properties_have_a_limit_in_bytes() -> None:
    """32767 bytes of UTF-8, whatever the number of characters."""
    assert property_text(Message("t", b"", properties={"a": "x" * 32_000}), "ID")
    with pytest.raises(MessageTooLarge, match="properties"):
        property_text(Message("t", b"", properties={"a": "é" * 17_000}), "ID")


def test_half_a_surrogate_pair_is_refused() -> None:
    """It cannot be encoded."""
    with pytest.raises(InvalidArgument):
        json_text("\ud800")
    with pytest.raises(InvalidArgument):
        encode_messages([Message("t", b"", tag="\ud800")], ["1"], 1000)


def test_a_batch_is_read_as_it_was_written() -> None:
    """Each message keeps its body, flag and properties; the batch waits if one of them does."""
    batch = encode_messages([Message("t", b"0", flag=5, wait_stored=False), Message("t", b"1", tag="a")], ["U0", "U1"], 1000)

    items = decode_batch(batch.body)
    assert [(flag, body) for flag, body, _ in items] == [(5, b"0"), (0, b"1")]
    assert decode_properties(items[1][2].decode()) == {"UNIQ_KEY": "U1", "WAIT": "true", "TAGS": "a"}
    assert (batch.topic, batch.unique_ids, batch.wait_stored) == ("t", ("U0", "U1"), True)


@pytest.mark.parametrize(
    "messages",
    [
        [Message("t", b""), Message("u", b"")],
        [Message("t", b"", delay_level=1)],
        [],
    ],
)
def test_batches_that_cannot_be_are_refused(messages: list[Message]) -> None:
    """One topic, no delay, at least one message."""
    with pytest.raises(InvalidArgument):
        encode_messages(messages, ["1", "2"], 1000)


def test_a_batch_that_is_too_large_is_never_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be larger than the memory; its size is reported all the same."""
    messages = [Message("t", bytes(500))] * 3
    size = len(encode_messages(messages, ["1", "2", "3"], 10_000).body)
    monkeypatch.setattr("ledgermq.client.sending.encode_batch", None)

    with pytest.raises(MessageTooLarge, match=f"batch of {size} bytes"):
        encode_messages(messages, ["1", "2", "3"], size - 1)


def answer(code: int, **ext: str) -> RemotingCommand:
    return RemotingCommand(code, ext)


def test_answers_become_results_or_errors() -> None:
    """The four stored statuses are results; anything else is an error that keeps code and remark."""
    result = result_of(answer(11, msgId="0A", queueOffset="7", transactionId="T"), "U", QUEUE, ADDRESS)
    assert (result.message_id, result.offset_message_id, result.queue_offset) == ("U", "0A", 7)
    assert (result.status, result.transaction_id) == (SendStatus.SLAVE_NOT_AVAILABLE, "T")

    with pytest.raises(MessageIllegal) as caught:
        result_of(RemotingCommand(13, remark="too long"), "U", QUEUE, ADDRESS)
    assert (caught.value.code, caught.value.remark, caught.value.address) == (13, "too long", "10.0.0.1:10911")
    with pytest.raises(BadAnswer):
        result_of(answer(0, msgId="0A", queueOffset="x"), "U", QUEUE, ADDRESS)


def test_a_batch_answer_is_taken_apart() -> None:
    """Ids are joined by commas; a 5.x batch queue answers a single one."""
    batch = encode_messages([Message("t", b"0"), Message("t", b"1")], ["U0", "U1"], 1000)

    several = results_of(answer(0, msgId="A,B", queueOffset="7"), batch, QUEUE, ADDRESS)
    single = results_of(answer(0, msgId="A", queueOffset="7"), batch, QUEUE, ADDRESS)

    assert [(each.message_id, each.offset_message_id, each.queue_offset) for each in several] == [
        ("U0", "A", 7),
        ("U1", "B", 8),
    ]
    assert [each.offset_message_id for each in single] == ["A", "A"]
