"""Who may speak on the Raft port, and which reasons the others are given."""

from __future__ import annotations

import contextlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.dledger.handshake import (
    EXPIRED,
    Dialler,
    Hello,
    Listener,
    LogBeginning,
    NodeCard,
    challenge_of,
    decode_hello,
    encode_hello,
)
from ledgermq.ha.dledger.native_layout import LANE_ENTRIES, TAG, WELCOME
from ledgermq.ha.envelopes import ENVELOPE, KIND_HELLO, MAC_SIZE, NODE_SIZE, NONCE_SIZE, envelope, mac
from ledgermq.ha.errors import HaError, HaProtocolError, HaRefused, WrongRaftDialect

DIALLER = NodeCard("g", "n0", b"0" * NODE_SIZE, 4096)
LISTENER = NodeCard("g", "n1", b"1" * NODE_SIZE, 4096)
HELLO = Hello(DIALLER, LANE_ENTRIES, "n1", b"d" * NONCE_SIZE)


def a_listener(secret: bytes = b"secret", card: NodeCard = LISTENER) -> Listener:
    return Listener(card, secret, b"l" * NONCE_SIZE, lambda _: None)


def shake_hands(dialler: Dialler, listener: Listener, *, piece: int = 1000) -> None:
    """Carry bytes between both until one of them is done."""
    outgoing = dialler.opening()
    while outgoing:
        answer = b"".join(listener.receive(outgoing[at : at + piece]) for at in range(0, len(outgoing), piece))
        outgoing = b"".join(dialler.receive(answer[at : at + piece]) for at in range(0, len(answer), piece))


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_two_nodes_with_the_secret_get_to_know_each_other(piece: int) -> None:
    """However the network cuts what they say."""
    dialler, listener = Dialler(HELLO, b"secret"), a_listener()
    shake_hands(dialler, listener, piece=piece)
    assert dialler.done
    assert dialler.listener_node == LISTENER.node
    assert listener.peer == HELLO


def test_a_first_frame_behind_the_hello_is_kept() -> None:
    """The dialler need not wait for the welcome to arrive before it is read."""
    dialler, listener = Dialler(HELLO, b"secret"), a_listener()
    challenge = listener.receive(dialler.opening())
    listener.receive(dialler.receive(challenge) + b"frame")
    assert listener.rest == b"frame"


def test_without_the_secret_nobody_gets_in() -> None:
    """Both sides say what to do."""
    listener = a_listener(b"another")
    dialler = Dialler(HELLO, b"secret")
    with pytest.raises(HaRefused, match="set the same haSecret on all nodes"):
        shake_hands(dialler, listener)
    assert listener.peer is None
    with pytest.raises(HaRefused, match="set the same haSecret on all nodes"):
        dialler.receive(listener.farewell)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group": "h"}, "correct dLegerGroup"),
        ({"peer": "n1"}, "two nodes of group g have the id n1"),
        ({"node": LISTENER.node}, "is a copy of that of node n1"),
        ({"data_file_size": 8192}, "set mappedFileSizeCommitLog to one value on all nodes"),
    ],
)
def test_the_refusal_of_a_node_that_does_not_fit_gives_the_reason(change: dict[str, object], reason: str) -> None:
    """And so is the node that it dials."""
    hello = attrs.evolve(HELLO, card=attrs.evolve(DIALLER, **change))
    dialler, listener = Dialler(hello, b"secret"), a_listener()
    with pytest.raises(HaRefused, match=reason):
        shake_hands(dialler, listener)
    with pytest.raises(HaRefused, match=reason):
        dialler.receive(listener.farewell)


def test_a_node_that_took_another_address_is_refused_with_the_reason() -> None:
    """The list of peers is wrong on one of the two."""
    with pytest.raises(HaRefused, match="the addresses in dLegerPeers of one of the two are wrong"):
        shake_hands(Dialler(attrs.evolve(HELLO, to="n2"), b"secret"), a_listener())


def test_a_java_node_is_recognised() -> None:
    """Its first bytes are the length of a remoting frame."""
    with pytest.raises(WrongRaftDialect, match="set raftDialect to the same value on all nodes"):
        a_listener().receive(b"\x00\x00\x01\x20\x00\x00\x00\x60{")


@given(st.binary(min_size=8, max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    """Before anything is answered, unless it begins as a peer does."""
    listener = a_listener()
    if not data.startswith(TAG):
        with pytest.raises(HaError):
            listener.receive(data)


@pytest.mark.parametrize("size", [-1, 5000, 0x7FFFFFFF])
def test_absurd_lengths_are_refused(size: int) -> None:
    """A stranger cannot make a node keep what it sends."""
    with pytest.raises(HaProtocolError, match="at most 4096 are allowed"):
        a_listener().receive(TAG + ENVELOPE.pack(tag=TAG, size=size, kind=KIND_HELLO))


def test_another_version_is_named() -> None:
    """The last byte of the tag."""
    with pytest.raises(HaProtocolError, match="version 2 of the native Raft dialect"):
        a_listener().receive(TAG[:-1] + b"\x02")


@given(st.binary(max_size=400))
def test_any_hello_is_read_or_refused(body: bytes) -> None:
    """It comes from a peer that knows the secret, which may be broken."""
    with contextlib.suppress(HaProtocolError):
        assert encode_hello(decode_hello(body)) == body


WITH_IDENTITY = attrs.evolve(HELLO, card=attrs.evolve(DIALLER, group_id=b"g" * NODE_SIZE, start=b"s" * NODE_SIZE))


def listener_that_knows(card: NodeCard) -> Listener:
    return Listener(card, b"secret", challenge_of(b"l" * NONCE_SIZE), lambda _: None)


def test_both_sides_learn_the_group_and_the_start_of_the_other() -> None:
    dialler = Dialler(WITH_IDENTITY, b"secret")
    listener = listener_that_knows(attrs.evolve(LISTENER, group_id=b"g" * NODE_SIZE, start=b"t" * NODE_SIZE))

    shake_hands(dialler, listener)

    assert listener.peer == WITH_IDENTITY
    assert dialler.listener_start == b"t" * NODE_SIZE


def test_a_node_of_an_earlier_version_is_understood_on_both_sides() -> None:
    """Its challenge does not end in our word, and its hello has no identity, so a group may be upgraded node by node."""
    dialler, listener = Dialler(WITH_IDENTITY, b"secret"), a_listener()
    shake_hands(dialler, listener)
    assert dialler.done
    assert listener.peer == HELLO

    old, listener = Dialler(HELLO, b"secret"), listener_that_knows(LISTENER)
    old.opening()
    challenge = listener.receive(TAG)
    nonce = challenge[-NONCE_SIZE:]
    text = encode_hello(HELLO, with_identity=False)
    welcome = listener.receive(envelope(TAG, KIND_HELLO, text + mac(b"secret", b"ledgermq raft dialler", nonce, text)))
    assert listener.peer == HELLO
    assert len(welcome) == ENVELOPE.size + WELCOME.size + MAC_SIZE


def test_two_groups_of_one_name_and_secret_are_told_apart_by_their_ids() -> None:
    """Also once their first entries have expired. A node that does not know its group yet is let in."""
    other = attrs.evolve(LISTENER, group_id=b"h" * NODE_SIZE, beginning=LogBeginning(EXPIRED))
    listener = listener_that_knows(other)
    with pytest.raises(HaRefused, match="are of two groups that have the name g"):
        shake_hands(Dialler(WITH_IDENTITY, b"secret"), listener)

    dialler = Dialler(WITH_IDENTITY, b"secret")
    shake_hands(dialler, listener_that_knows(LISTENER))
    assert dialler.done
