"""The state of the controllers: events, and the state record that replaces the log before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.controller.errors import CorruptEvents
from ledgermq.ha.controller.state import (
    BROKER_NAMES_MAX,
    PIECE_BYTES,
    AddressChanged,
    BrokerSet,
    ControllerState,
    Event,
    IdApplied,
    MasterElected,
    Replica,
    ReplicasForgotten,
    SetAltered,
    StatePiece,
    TimeoutChanged,
    decode_events,
    encode_events,
)


def applied(broker_id: int = 1, name: str = "b1") -> IdApplied:
    return IdApplied(cluster="c1", name=name, broker_id=broker_id, address=f"h{broker_id}:1", check_code=f"h{broker_id}:1;7")


ELECTED = MasterElected(name="b1", master_id=1, master_epoch=1, in_sync=frozenset({1}), in_sync_epoch=1)
EVENTS = [
    applied(),
    applied(2),
    ELECTED,
    SetAltered(name="b1", in_sync=frozenset({1, 2}), in_sync_epoch=2),
    AddressChanged(name="b1", broker_id=2, address="h9:1"),
    TimeoutChanged(name="b1", broker_id=2, timeout_millis=600),
]


def state_of(*events: object) -> ControllerState:
    state = ControllerState()
    for event in events:
        state.apply(event)  # type: ignore[arg-type]
    return state


YESTERDAY = {
    b'{"type":"id_applied","cluster":"c1","name":"b1","broker_id":1,"address":"h1:1","check_code":"h1:1;7"}': applied(),
    b'{"type":"master_elected","name":"b1","master_id":1,"master_epoch":1,"in_sync":[1],"in_sync_epoch":1}': ELECTED,
    b'{"type":"set_altered","name":"b1","in_sync":[1],"in_sync_epoch":2}': SetAltered(
        name="b1", in_sync=frozenset({1}), in_sync_epoch=2
    ),
    b'{"type":"address_changed","name":"b1","broker_id":2,"address":"h9:1"}': AddressChanged(
        name="b1", broker_id=2, address="h9:1"
    ),
    b'{"type":"timeout_changed","name":"b1","broker_id":2,"timeout_millis":600}': TimeoutChanged(
        name="b1", broker_id=2, timeout_millis=600
    ),
    b'{"type":"replicas_forgotten","name":"b1","broker_ids":[2],"in_sync_epoch":3}': ReplicasForgotten(
        name="b1", broker_ids=frozenset({2}), in_sync_epoch=3
    ),
    b'{"type":"state","number":0,"count":1,"sets":[{"cluster":"c1","name":"b1","replicas":{"1":{"address":"h1:1",'
    b'"check_code":"h1:1;7","timeout_millis":null}},"next_id":2,"master_id":null,"master_epoch":0,"in_sync":[],'
    b'"in_sync_epoch":0,"first":true}]}': StatePiece(
        number=0,
        count=1,
        sets=(BrokerSet(cluster="c1", name="b1", replicas={1: Replica("h1:1", "h1:1;7")}, next_id=2),),
    ),
    b'{"type":"state","number":0,"count":1,"sets":[],"first_id":3,"first_epoch":7}': StatePiece(
        number=0, count=1, sets=(), first_id=3, first_epoch=7
    ),
}
"""Events as logs have them, which every later version reads."""


@pytest.mark.parametrize(("written", "event"), YESTERDAY.items(), ids=lambda value: type(value).__name__)
def test_events_in_existing_logs_are_read(written: bytes, event: Event) -> None:
    assert decode_events(b"[%b]" % written) == [event]
    assert encode_events([event]) == b"[%b]" % written


def test_events_make_the_replicas_the_master_and_the_syncstateset_of_a_name() -> None:
    assert state_of(*EVENTS).sets["b1"] == BrokerSet(
        cluster="c1",
        name="b1",
        replicas={1: Replica("h1:1", "h1:1;7"), 2: Replica("h9:1", "h2:1;7", 600)},
        next_id=3,
        master_id=1,
        master_epoch=1,
        in_sync=frozenset({1, 2}),
        in_sync_epoch=2,
        first=False,
    )


def test_events_applied_twice_change_nothing() -> None:
    twice = [event for event in EVENTS for _ in range(2)]

    assert state_of(*twice).sets == state_of(*EVENTS).sets


def test_forgotten_replicas_leave_their_ids_and_epochs_behind() -> None:
    state = state_of(*EVENTS, ReplicasForgotten(name="b1", broker_ids=frozenset({1, 2}), in_sync_epoch=3))

    assert state.sets["b1"] == BrokerSet(cluster="c1", name="b1", next_id=3, master_epoch=1, in_sync_epoch=3, first=False)
    state.apply(applied(3))
    assert state.sets["b1"].first


def test_names_without_replicas_give_way_to_a_new_name_only_when_there_is_no_room() -> None:
    """No id is given out twice by that, and no epoch decreases, whichever name comes back."""
    forgotten = ReplicasForgotten(name="b1", broker_ids=frozenset({1, 2}), in_sync_epoch=7)
    state = state_of(*EVENTS, forgotten, *(applied(1, f"name{number}") for number in range(BROKER_NAMES_MAX - 1)))
    assert state.sets["b1"].in_sync_epoch == 7

    for _ in range(2):
        state.apply(IdApplied(cluster="c1", name="new", broker_id=3, address="h:1", check_code="h:1;1"))

    assert "b1" not in state.sets
    assert len(state.sets) == BROKER_NAMES_MAX
    new = state.sets["new"]
    assert (new.replicas.keys(), new.next_id, new.master_epoch, new.in_sync_epoch) == ({3}, 4, 7, 7)
    restored = state_of(*state.pieces())
    assert (restored.sets, restored.first_id, restored.first_epoch) == (state.sets, 3, 7)
    assert restored.size_bytes == state.size_bytes


def test_an_entry_of_another_kind_stops_the_node() -> None:
    for body in (b"", b"[", b'[{"type":"later_version"}]', b"\xff"):
        with pytest.raises(CorruptEvents, match="cannot be applied"):
            decode_events(body)
    for event in (ELECTED, AddressChanged(name="b1", broker_id=1, address="h:1")):
        with pytest.raises(CorruptEvents):
            state_of(event)
    with pytest.raises(CorruptEvents, match="replica 2"):
        state_of(applied(), AddressChanged(name="b1", broker_id=2, address="h:1"))


@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.integers(1, 60))
def test_a_state_record_restores_the_state(events: list[object], names: int) -> None:
    """In as many pieces as it needs, each of them small."""
    state = state_of(applied(), applied(2), *events)
    for number in range(names):
        for broker_id in range(1, 40):
            state.apply(applied(broker_id, f"name{number}"))
    pieces = [encode_events([piece]) for piece in state.pieces()]

    restored = state_of()
    restored.forget()
    for piece in pieces:
        assert not restored.known
        restored.apply(decode_events(piece)[0])

    assert restored.known
    assert restored.sets == state.sets
    assert restored.size_bytes == state.size_bytes
    assert len(pieces) >= state.size_bytes // PIECE_BYTES
    assert max(map(len, pieces)) < 2 * PIECE_BYTES


def test_until_a_whole_state_record_changes_are_left_out() -> None:
    """A log that begins anew may begin with changes of what is not known, and with the end of a record."""
    large = state_of(*(applied(broker_id, f"name{number}") for number in range(100) for broker_id in range(1, 40)))
    first, *others, last = large.pieces()
    state = state_of()
    state.forget()

    for event in (SetAltered(name="b1", in_sync=frozenset({1}), in_sync_epoch=7), last, first, *others[1:], last):
        state.apply(event)
    assert not state.known
    assert state.sets == {}

    for event in (first, *others, last):
        state.apply(event)
    assert state.sets == large.sets
