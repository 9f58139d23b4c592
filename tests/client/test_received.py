"""Messages as views into the bytes of a pull answer."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.compression import Compression, compress
from ledgermq.client.received import ReceivedMessage, select_tags, split_records
from ledgermq.message.errors import CorruptRecord
from ledgermq.message.layout import decode_record, encode_host, encode_record
from ledgermq.message.message import MessageQueue
from ledgermq.message.properties import encode_properties

HOSTS = st.sampled_from([encode_host("10.0.0.5", 40000), encode_host("::1", 40000)])


@attrs.define(eq=False)
class Recorder:
    """An origin that notes what became of its messages."""

    queue: MessageQueue = attrs.field(factory=lambda: MessageQueue("t", "b", 0))
    acked: list[int] = attrs.field(factory=list[int])
    retried: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    withheld: bool = False

    def check_open(self) -> None:
        """It never closes."""

    def put_back(self, message: ReceivedMessage) -> None:
        self.give_back(message)

    def give_back(self, message: ReceivedMessage) -> None:
        self.retried.append((message.queue_offset, 0))

    def ack(self, message: ReceivedMessage) -> None:
        self.acked.append(message.queue_offset)

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        self.retried.append((message.queue_offset, delay_level))


def record(offset: int, body: bytes = b"x", properties: dict[str, str] | None = None, **fields: int) -> bytes:
    host = encode_host("10.0.0.5", 40000)
    return encode_record(
        b"t", 0, offset, body, encode_properties(properties or {}).encode(), 0, fields.get("sys_flag", 0),
        1700, host, 1701, host, fields.get("times", 0), 0, 1000 + offset,
    )  # fmt: skip


@given(st.lists(st.tuples(st.binary(max_size=50), HOSTS, HOSTS, st.integers(0, 20)), max_size=10))
def test_views_show_what_decoding_shows(parts: list[tuple[bytes, bytes, bytes, int]]) -> None:
    """Every property read from the bytes agrees with the whole decoded record, with hosts of both families."""
    buffer = b"".join(
        encode_record(
            b"t",
            0,
            100 + at,
            body,
            b"TAGS\x01a\x02UNIQ_KEY\x01U\x02",
            5,
            0,
            1700 + at,
            born,
            1701 + at,
            store,
            times,
            0,
            9 * at,
        )
        for at, (body, born, store, times) in enumerate(parts)
    )

    messages = split_records(Recorder(), buffer)

    assert len(messages) == len(parts)
    for message in messages:
        stored = message.stored()
        assert (message.body, message.queue_offset, message.size) == (stored.body, stored.queue_offset, stored.size)
        assert (message.born_timestamp, message.store_timestamp) == (stored.born_timestamp, stored.store_timestamp)
        assert (message.physical_offset, message.reconsume_times) == (stored.physical_offset, stored.reconsume_times)
        assert (message.properties, message.tag, message.message_id) == (stored.properties, "a", "U")
        assert message.offset_message_id == stored.message_id
        assert message.topic == message.stored().topic == "t"


@given(st.data())
def test_damaged_answers_are_found_out(data: st.DataObject) -> None:
    """Cut or altered lengths are an error, never an endless loop or a wrong split."""
    whole = record(0) + record(1)
    buffer = bytearray(whole)
    cut = data.draw(st.integers(1, len(buffer) - 1))
    if cut != len(record(0)):
        with pytest.raises(CorruptRecord):
            split_records(Recorder(), bytes(buffer[:cut]))
    buffer[data.draw(st.integers(0, 7))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        split_records(Recorder(), bytes(buffer))


def test_a_body_that_passes_its_record_is_an_error() -> None:
    buffer = bytearray(record(0))
    buffer[84:88] = (1000).to_bytes(4, "big")

    with pytest.raises(CorruptRecord, match="body of 1000 bytes in a record of"):
        split_records(Recorder(), bytes(buffer))


@given(st.binary(min_size=1, max_size=50), HOSTS, st.data())
def test_a_body_that_is_damaged_is_found(body: bytes, host: bytes, data: st.DataObject) -> None:
    """By the CRC in its record, whichever family its hosts have."""
    whole = encode_record(b"t", 0, 7, body, b"", 0, 0, 1700, host, 1701, host)
    buffer = bytearray(record(6) + whole)
    at = len(buffer) - len(whole) + whole.index(len(body).to_bytes(4, "big") + body, 80) + 4
    buffer[at + data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(CorruptRecord, match="the message at queue offset 7 is damaged"):
        split_records(Recorder(), bytes(buffer))


def test_compressed_bodies_are_shown_plain() -> None:
    """The stored form stays reachable."""
    packed, sys_flag = compress(b"again " * 100, Compression.LZ4)
    (message,) = split_records(Recorder(), record(0, packed, sys_flag=sys_flag))

    assert message.body == b"again " * 100
    assert message.stored().body == packed


def test_a_retried_message_keeps_its_topic() -> None:
    """It is read from the retry topic and shows where it was sent."""
    (message,) = split_records(Recorder(), record(0, properties={"RETRY_TOPIC": "orders", "KEYS": "a b"}, times=2))

    assert (message.topic, message.stored().topic, message.reconsume_times) == ("orders", "t", 2)
    assert message.keys == ["a", "b"]
    assert message.message_id == decode_record(record(0, properties={"RETRY_TOPIC": "orders", "KEYS": "a b"})).message_id
    assert "offset 0" in repr(message)


async def test_the_origin_hears_what_became_of_it() -> None:
    """Acknowledged or to be retried."""
    origin = Recorder()
    first, second = split_records(origin, record(7) + record(8))

    await first.ack()
    await second.retry(delay_level=3)

    assert (origin.acked, origin.retried) == ([7], [(8, 3)])


def test_tags_are_compared_as_texts() -> None:
    """Only wanted ones stay; no tags means all."""
    messages = split_records(Recorder(), record(0, properties={"TAGS": "a"}) + record(1))

    assert select_tags(messages, frozenset("a")) == messages[:1]
    assert select_tags(messages, frozenset()) == messages
