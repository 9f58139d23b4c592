"""Offset message ids."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.errors import BadMessageId
from ledgermq.message.message import MessageId
from ledgermq.message.units import PhysicalOffset


@given(st.ip_addresses().map(str), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_an_id_is_read_back(host: str, port: int, offset: int) -> None:
    """Broker and position survive, for both address families."""
    message_id = MessageId(host, port, PhysicalOffset(offset))

    assert MessageId.parse(str(message_id)) == message_id
    assert len(str(message_id)) == (56 if ":" in host else 32)


def test_an_id_is_written_as_java_writes_it() -> None:
    """Upper-case hex digits of address, port and offset."""
    assert str(MessageId("10.0.0.1", 10911, PhysicalOffset(1000))) == "0A00000100002A9F00000000000003E8"


@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF", max_size=60))
def test_any_text_is_refused_or_read_but_nothing_else(text: str) -> None:
    """What a user types is an id or a BadMessageId."""
    with contextlib.suppress(BadMessageId):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["", "0A", "0A00000100002A9F00000000000003E8FF", "not an id"])
def test_other_lengths_are_refused(text: str) -> None:
    """The error says what an id looks like."""
    with pytest.raises(BadMessageId, match="32 or 56 hex digits"):
        MessageId.parse(text)


def test_a_producers_unique_id_is_not_taken_for_the_id_of_a_broker() -> None:
    """Both have 32 digits; the process and the class loader of a producer's stand where the port of a broker would."""
    with pytest.raises(BadMessageId, match="unique id"):
        MessageId.parse("7F00000157460AAFC6796EFC49DE0001")
