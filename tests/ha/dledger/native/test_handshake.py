"""Who may speak on the Raft port, and which reasons the others are given."""

from __future__ import annotations

import contextlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.dledger.native.handshake import (
    EXPIRED,
    UNKNOWN,
    Dialler,
    Hello,
    Listener,
    LogBeginning,
    NodeCard,
    challenge_of,
    decode_hello,
    encode_hello,
)
from ledgermq.ha.dledger.native.layout import LANE_CONTROL, LANE_ENTRIES, TAG
from ledgermq.ha.envelopes import ENVELOPE, KIND_HELLO, NODE_SIZE, NONCE_SIZE
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


IDENTITY_OF_DIALLER = attrs.evolve(DIALLER, group_id=b"g" * NODE_SIZE, start=b"s" * NODE_SIZE)
WITH_IDENTITY = attrs.evolve(HELLO, card=attrs.evolve(IDENTITY_OF_DIALLER, address="10.0.0.2:40911"))


def listener_that_knows(card: NodeCard) -> Listener:
    return Listener(card, b"secret", challenge_of(b"l" * NONCE_SIZE), lambda _: None)


def test_both_sides_learn_the_group_and_the_start_of_the_other() -> None:
    dialler = Dialler(WITH_IDENTITY, b"secret")
    listener = listener_that_knows(attrs.evolve(LISTENER, group_id=b"g" * NODE_SIZE, start=b"t" * NODE_SIZE))

    shake_hands(dialler, listener)

    assert listener.peer == WITH_IDENTITY
    assert dialler.listener_start == b"t" * NODE_SIZE


def test_a_listener_of_an_earlier_version_gets_no_address() -> None:
    """It would refuse a hello with more behind the identity."""
    dialler = Dialler(WITH_IDENTITY, b"secret")
    listener = Listener(LISTENER, b"secret", bytes(NONCE_SIZE - 8) + b"identity", lambda _: None)

    shake_hands(dialler, listener)

    assert listener.peer == attrs.evolve(HELLO, card=IDENTITY_OF_DIALLER)


# What two nodes sent each other, as written by the last version that knew no identity.
EARLIER_HELLO = bytes.fromhex(
    "894c4d5152460d01000000900000000200"  # tag, size and kind; the nonce begins with 00
    "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f646464646464646464646464646464640000000000000000400000000000"
    "000000000000ffffffffffffffff00000007000600020002000e6f72646572736e316e3031302e302e302e323a3130393131"
)
EARLIER_MACS_OF_HELLO = {
    b"@ABCDEFGHIJKLMNOPQRSTUVWidentity": "00e0f5f1d2cc32c67ce6a95550179664c0cf5582e3489cb97a546bb227ff4d9f",
    b"@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_": "a8396052e578be2f484eeafa32e3a097baaa5f0ae8984fa4d66bd36b571b7047",
}
EARLIER_CHALLENGE = bytes.fromhex(
    "894c4d5152460d010000002000000001404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"
)
EARLIER_WELCOME = "894c4d5152460d0100000030000000036c6c6c6c6c6c6c6c6c6c6c6c6c6c6c6c"
EARLIER_MACS_OF_WELCOME = {
    b"@ABCDEFGHIJKLMNOPQRSTUVWidentity": "57ff508b9a775f53750801e2bf121acfdd31963be5b22252c4eb8e071946509c",
    b"@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_": "0dd7bea4c778fed1f6bd585ed8d649c18e66aa81b2625c72de5bd9e987bf6fe9",
}
UPGRADED = NodeCard("orders", "n1", b"d" * NODE_SIZE, 1 << 30, LogBeginning(0, -1, 7), "10.0.0.2:10911", b"g" * 16, b"s" * 16)
LEADER = attrs.evolve(UPGRADED, peer="n0", node=b"l" * NODE_SIZE, serves="10.0.0.1:10911")


def test_a_node_of_an_earlier_version_is_welcomed_in_its_own_bytes() -> None:
    """Its hello has no identity, and it would refuse a welcome that has one: a group is upgraded node by node."""
    nonce = next(iter(EARLIER_MACS_OF_HELLO))
    assert challenge_of(nonce).endswith(nonce[-8:])
    listener = Listener(LEADER, b"secret", nonce, lambda _: None)

    listener.receive(TAG)
    answer = listener.receive(EARLIER_HELLO + bytes.fromhex(EARLIER_MACS_OF_HELLO[nonce]))

    assert answer == bytes.fromhex(EARLIER_WELCOME + EARLIER_MACS_OF_WELCOME[nonce])
    assert listener.peer is not None
    assert listener.peer.card == attrs.evolve(UPGRADED, group_id=UNKNOWN, start=UNKNOWN)


def test_a_node_of_an_earlier_version_is_dialled_in_its_own_bytes() -> None:
    """Its challenge does not end in the word that says that identities are understood."""
    dialler = Dialler(Hello(UPGRADED, LANE_CONTROL, "n0", bytes(range(NONCE_SIZE))), b"secret")
    nonce = EARLIER_CHALLENGE[-NONCE_SIZE:]

    assert dialler.opening() == TAG
    assert dialler.receive(EARLIER_CHALLENGE) == EARLIER_HELLO + bytes.fromhex(EARLIER_MACS_OF_HELLO[nonce])
    dialler.receive(bytes.fromhex(EARLIER_WELCOME + EARLIER_MACS_OF_WELCOME[nonce]))

    assert dialler.done
    assert (dialler.listener_node, dialler.listener_start) == (LEADER.node, UNKNOWN)


def test_two_groups_of_one_name_and_secret_are_told_apart_by_their_ids() -> None:
    """Also once their first entries have expired. A node that does not know its group yet is let in."""
    other = attrs.evolve(LISTENER, group_id=b"h" * NODE_SIZE, beginning=LogBeginning(EXPIRED))
    listener = listener_that_knows(other)
    with pytest.raises(HaRefused, match="are of two groups that have the name g"):
        shake_hands(Dialler(WITH_IDENTITY, b"secret"), listener)

    dialler = Dialler(WITH_IDENTITY, b"secret")
    shake_hands(dialler, listener_that_knows(LISTENER))
    assert dialler.done
