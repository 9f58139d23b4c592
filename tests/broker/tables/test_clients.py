"""Who is connected."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ledgermq.broker.subscription import Subscription
from ledgermq.broker.tables import clients as module
from ledgermq.broker.tables.clients import EXPIRY_SECONDS, Consumers, Member, Producers
from ledgermq.message.json import dumps
from ledgermq.remoting.command import FRAME_SIZE_MAX, HEADER_SIZE_MAX
from ledgermq.remoting.errors import RequestRefused

from ..admin.desk import RecordedConnection, connection_from


def member(connection: RecordedConnection, client_id: str = "c", now: float = 0.0) -> Member:
    return Member(connection, client_id, "JAVA", 409, now, 0)


async def test_one_connection_has_so_many_members_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has are renewed, and others are not affected."""
    monkeypatch.setattr(module, "MEMBERS_OF_CONNECTION_MAX", 2)
    greedy, other = connection_from(1), connection_from(2)
    consumers, producers = Consumers(), Producers()
    for group in ("g1", "g2"):
        consumers.register(group, member(greedy), [])
        producers.register(group, member(greedy))

    with pytest.raises(RequestRefused, match="at most 2 members"):
        consumers.register("g3", member(greedy), [])
    with pytest.raises(RequestRefused, match="at most 2 members"):
        producers.register("g3", member(greedy))

    assert consumers.groups.keys() == producers.groups.keys() == {"g1", "g2"}
    consumers.register("g1", member(greedy), [])
    consumers.register("g3", member(other), [])
    consumers.unregister("g1", greedy, "c")
    consumers.register("g3", member(greedy), [])


async def test_what_all_groups_subscribe_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that asks for more changes nothing; what a group gives up makes room."""
    connection, consumers = connection_from(1), Consumers()
    many = [Subscription.parse(f"T{n}", "*") for n in range(8)]
    monkeypatch.setattr(module, "SUBSCRIBED_BYTES_MAX", 10 * many[0].size)
    consumers.register("g1", member(connection), many)

    with pytest.raises(RequestRefused, match=r"the subscriptions of all groups take \d+ of \d+ bytes; nothing was changed"):
        consumers.register("g2", member(connection), many)

    assert consumers.groups.keys() == {"g1"}
    consumers.register("g1", member(connection), many[:1])
    consumers.register("g2", member(connection), many)
    consumers.drop(connection)
    consumers.register("g2", member(connection), many)


@pytest.mark.parametrize(("bound", "remark"), [("MEMBERS_BYTES_MAX", "of all groups"), ("GROUP_BYTES_MAX", "of the group g")])
async def test_the_memory_of_members_is_bounded_over_all_connections(
    monkeypatch: pytest.MonkeyPatch, bound: str, remark: str
) -> None:
    """A member that would exceed it is refused; one that leaves, expires or loses its connection makes room."""
    monkeypatch.setattr(module, bound, 3 * module.MEMBER_BYTES)
    first, second, third = (connection_from(port) for port in (1, 2, 3))
    for table in (Consumers(), Producers()):

        def register(connection: RecordedConnection, now: float = 0.0, table: Consumers | Producers = table) -> None:
            if isinstance(table, Consumers):
                table.register("g", member(connection, now=now), [])
            else:
                table.register("g", member(connection, now=now))

        def check_full(register: Callable[[RecordedConnection], None] = register) -> None:
            with pytest.raises(RequestRefused, match=f"the members {remark} take "):
                register(third)

        register(first)
        register(second)
        check_full()
        register(first, now=200.0)
        table.expire(200.0)
        register(second)
        check_full()
        table.drop(second)
        register(second)
        check_full()
        table.unregister("g", second, "c")
        register(third)


@pytest.mark.parametrize("character", ["i", '"', "\u4e3b", "\U0001f600"])
async def test_the_client_ids_of_a_group_fit_one_answer(monkeypatch: pytest.MonkeyPatch, character: str) -> None:
    """However many a stranger invents, the members of the group can still distribute the queues."""
    monkeypatch.setattr(module, "MEMBERS_OF_CONNECTION_MAX", 1 << 20)
    connection, consumers = connection_from(1), Consumers()

    def fill() -> None:
        for number in range(1 << 20):
            consumers.register("g", member(connection, f"{number}".ljust(512, character)), [])

    with pytest.raises(RequestRefused, match="the members of the group g take "):
        fill()
    body = dumps({"consumerIdList": consumers.groups["g"].client_ids})

    assert len(body) < FRAME_SIZE_MAX - HEADER_SIZE_MAX


@pytest.mark.parametrize(
    ("joining", "topics"),
    [
        ({"T": "b||a"}, []),
        ({"T": "a"}, ["T"]),
        ({"T": "*"}, ["T"]),
        ({"T": "a || b", "U": "*"}, ["U"]),
        ({"U": "*"}, ["T", "U"]),
    ],
)
async def test_a_member_that_wants_other_messages_than_its_group_is_told_apart(
    joining: dict[str, str], topics: list[str]
) -> None:
    """Only when it joins, and by what the expressions match."""
    consumers, first, second = Consumers(), member(connection_from(1)), member(connection_from(2))
    wanted = [Subscription.parse(topic, expression) for topic, expression in joining.items()]
    assert consumers.differing("g", first, wanted) == []
    consumers.register("g", first, [Subscription.parse("T", "a || b")])

    assert consumers.differing("g", second, wanted) == topics

    consumers.register("g", second, wanted)
    assert consumers.differing("g", second, [Subscription.parse("T", "c")]) == []


async def test_members_come_and_go_in_any_order() -> None:
    """Groups hold exactly the members that a plain set holds, and the end of a connection returns the groups it was in."""
    rng, consumers = random.Random(3), Consumers()
    connections = [connection_from(port) for port in range(1, 6)]
    present: dict[tuple[str, RecordedConnection, str], float] = {}
    for now in range(600):
        group, connection, client_id = rng.choice("ghi"), rng.choice(connections), rng.choice("xyz")
        match rng.randrange(8):
            case 0:
                lost = consumers.drop(connection)
                assert lost == sorted({name for name, its, _ in present if its is connection})
                present = {key: at for key, at in present.items() if key[1] is not connection}
            case 1:
                assert consumers.unregister(group, connection, client_id) == ((group, connection, client_id) in present)
                present.pop((group, connection, client_id), None)
            case 2:
                consumers.expire(float(now))
                present = {key: at for key, at in present.items() if now - at <= EXPIRY_SECONDS}
            case _:
                consumers.register(group, member(connection, client_id, now), [Subscription.parse("T", "A")])
                present[group, connection, client_id] = now

        members = {(living.name, *key) for living in consumers.groups.values() for key in living.members}
        assert members == present.keys()
        assert all(living.members for living in consumers.groups.values())
