"""Who is connected."""

from __future__ import annotations

import random

import pytest

from ledgermq.broker import clients as module
from ledgermq.broker.clients import EXPIRY_SECONDS, Consumers, Member, Producers
from ledgermq.broker.subscription import Subscription
from ledgermq.remoting.errors import RequestRefused

from .admin.desk import RecordedConnection, connection_from


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
    monkeypatch.setattr(module, "SUBSCRIBED_MAX", 10)
    connection, consumers = connection_from(1), Consumers()
    many = [Subscription.parse(f"T{n}", "*") for n in range(8)]
    consumers.register("g1", member(connection), many)

    with pytest.raises(RequestRefused, match="at most 10 topics and tags"):
        consumers.register("g2", member(connection), many)

    assert consumers.groups.keys() == {"g1"}
    consumers.register("g1", member(connection), many[:1])
    consumers.register("g2", member(connection), many)
    consumers.drop(connection)
    consumers.register("g2", member(connection), many)


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
