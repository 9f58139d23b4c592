"""A slave's copies of its master's tables."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from ledgermq.ha.classic.sync import ConfigSync, OffsetMerge, Offsets
from ledgermq.ha.classic.table_proofs import NONCE_FIELD, PROOF_FIELD, node_credentials, table_proof
from ledgermq.message.json import dumps
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.server import RemotingServer, ServerConnection
from ledgermq.remoting.signature import is_signed
from ledgermq.testing.logs import capture_logs
from ledgermq.world.clock import SystemClock
from ledgermq.world.network import Address, TcpNetwork

KEY = ("T", "G")


def merged(merge: OffsetMerge, own: Offsets, masters: Offsets) -> tuple[Offsets, Offsets]:
    """Merge whole tables."""
    put, push = merge.merge(own, masters, [*masters, *(key for key in own if key not in masters)])
    merge.complete()
    return put, push


def test_the_master_is_followed_backwards_too() -> None:
    """Offsets that were reset on the master are reset here."""
    merge = OffsetMerge()
    assert merged(merge, {}, {KEY: {0: 100}}) == ({KEY: {0: 100}}, {})

    assert merged(merge, {KEY: {0: 100}}, {KEY: {0: 10}}) == ({KEY: {0: 10}}, {})


def test_what_was_committed_here_meanwhile_stays_and_goes_to_the_master() -> None:
    """An old master returns with an old offset: neither side jumps back."""
    merge = OffsetMerge()
    merged(merge, {}, {KEY: {0: 100, 1: 100}})

    own: Offsets = {KEY: {0: 150, 1: 100}}  # consumers committed queue 0 here while the master was away
    assert merged(merge, own, {KEY: {0: 90, 1: 90}}) == ({KEY: {1: 90}}, {KEY: {0: 150}})
    assert merged(merge, {KEY: {0: 150, 1: 90}}, {KEY: {0: 150, 1: 90}}) == ({}, {})
    assert merged(merge, {KEY: {0: 150, 1: 90}}, {KEY: {0: 20, 1: 90}}) == ({KEY: {0: 20}}, {}), "a later reset is followed"


def test_a_master_that_is_further_wins_over_what_was_committed_here() -> None:
    """Consumers went on at the master."""
    merge = OffsetMerge()
    merged(merge, {}, {KEY: {0: 100}})

    assert merged(merge, {KEY: {0: 120}}, {KEY: {0: 130}}) == ({KEY: {0: 130}}, {})


def test_a_group_that_only_committed_here_is_handed_over() -> None:
    """A master that lost its file gets the offsets back."""
    merge = OffsetMerge()
    merged(merge, {}, {KEY: {0: 100}, ("U", "G"): {0: 1}})

    own: Offsets = {KEY: {0: 140}, ("U", "G"): {0: 1}}
    assert merged(merge, own, {("U", "G"): {0: 1}}) == ({}, {KEY: {0: 140}})


def test_before_the_master_has_said_anything_our_file_counts_for_nothing() -> None:
    """It may be older than a reset on the master; delivering again is safe, skipping is not."""
    assert merged(OffsetMerge(), {KEY: {0: 500}}, {KEY: {0: 100}}) == ({KEY: {0: 100}}, {})


def test_a_master_that_knew_of_no_group_has_said_so() -> None:
    """A group that began here while it was away is handed to it all the same."""
    merge = OffsetMerge()
    assert merged(merge, {}, {}) == ({}, {})

    assert merged(merge, {KEY: {0: 5}}, {}) == ({}, {KEY: {0: 5}})


def test_what_the_master_has_deleted_is_not_handed_back() -> None:
    """Not in the next round, and in none after it; who commits here again after that is heard."""
    merge, others = OffsetMerge(), {("T", "Other"): {0: 1}}
    own = {KEY: {0: 5}, **others}
    merged(merge, own, own)

    assert [merged(merge, own, others) for _ in range(3)] == [({}, {})] * 3
    assert merged(merge, {KEY: {0: 6}, **others}, others) == ({}, {KEY: {0: 6}})


def test_a_merge_that_was_not_finished_takes_nothing_for_a_commit() -> None:
    """The next one knows what was copied before, and what was overwritten by then is no commit of a consumer."""
    merge, other, own = OffsetMerge(), ("U", "G"), Offsets({KEY: {0: 500}, ("U", "G"): {0: 700}})
    assert merge.merge(own, {KEY: {0: 100}, other: {0: 7}}, [KEY]) == ({KEY: {0: 100}}, {}), "the first of two parts"
    own[KEY][0] = 100
    assert merged(merge, own, {KEY: {0: 50}, other: {0: 7}}) == ({KEY: {0: 50}, other: {0: 7}}, {})
    own = {KEY: {0: 50}, other: {0: 7}}

    merge.merge(own, {KEY: {0: 60}, other: {0: 8}}, [KEY])
    own = {KEY: {0: 60}, other: {0: 9}}  # the first was overwritten, the second committed here

    assert merged(merge, own, {KEY: {0: 10}, other: {0: 8}}) == ({KEY: {0: 10}}, {other: {0: 9}})


@attrs.define
class Tables:
    """A slave's tables."""

    taken: dict[str, Any] = attrs.field(factory=dict[str, Any])
    offsets: Offsets = attrs.field(factory=dict[tuple[str, str], dict[int, int]])
    adoptions: int = 0
    master_appends: bool | None = None
    asked: int = 0
    in_log: bool = False
    copied_end: int | None = None
    commits: list[tuple[str, str, int, int]] = attrs.field(factory=list[tuple[str, str, int, int]])

    async def take_logged_offsets(self, offsets: Offsets) -> None:
        self.offsets = offsets

    def copied(self, end: int) -> None:
        self.copied_end = end

    def commits_here(self, masters_end: float) -> list[tuple[str, str, int, int]]:
        assert masters_end == 700
        return list(self.commits)

    def handed(self, topic: str, group: str, queue_id: int) -> None:
        self.commits = [each for each in self.commits if each[:3] != (topic, group, queue_id)]

    def heard_of_master(self, *, appends: bool) -> None:
        self.master_appends = appends

    def asking(self) -> None:
        self.asked += 1

    def topics_version(self) -> Mapping[str, int]:
        return self._version("topics")

    def groups_version(self) -> Mapping[str, int]:
        return self._version("groups")

    def _version(self, name: str) -> Mapping[str, int]:
        version: Mapping[str, int] = self.taken.get(name, {}).get("dataVersion", {})
        return version

    async def take_topics(self, stored: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.taken["topics"] = stored

    async def adopt_topics(self) -> None:
        self.adoptions += 1

    async def take_groups(self, stored: Mapping[str, Any]) -> None:
        self.taken["groups"] = stored

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        self.taken["delay"] = stored

    def take_access(self, stored: Mapping[str, Any]) -> None:
        self.taken["access"] = stored

    def consumer_offsets(self) -> Offsets:
        return self.offsets

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        for key, queues in offsets.items():
            self.offsets.setdefault(key, {}).update(queues)


@attrs.define(eq=False)
class Master:
    """Gives the answers that the test prepared, and records what it was asked."""

    bodies: dict[int, Any]
    secret: bytes = b""
    asked: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        for request in requests:
            self.asked.append(request)
            body = self.bodies.get(request.code)
            if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                connection.answer(request)
            elif body is None:
                connection.answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not here")
            else:
                encoded = body if isinstance(body, bytes) else dumps(body)
                proof = table_proof(self.secret, request.ext.get(NONCE_FIELD, ""), request.code, encoded)
                connection.answer(request, ext={PROOF_FIELD: proof}, body=encoded)
        return len(requests)

    def connection_closed(self, connection: ServerConnection) -> None:
        pass


VERSION = {"counter": 3, "timestamp": 7, "stateVersion": 0}
BODIES: dict[int, Any] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: {"dataVersion": VERSION, "topicConfigTable": {"T": {"topicName": "T"}}},
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:5,1:6}}}',
    RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:5,2:0}}',
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"dataVersion": VERSION, "subscriptionGroupTable": {}},
}


@asynccontextmanager
async def serving(master: Master) -> AsyncGenerator[Address]:
    network = TcpNetwork()
    listeners = list(await network.open_listeners("127.0.0.1", 0))
    server = RemotingServer(master, network, SystemClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        yield Address("127.0.0.1", network.listener_port(listeners[0]))
        nursery.cancel_scope.cancel()


async def test_one_round_brings_every_table() -> None:
    """Delay offsets, topics, consumer offsets, groups; integer keys without quotes as fastjson writes them."""
    master, tables = Master(dict(BODIES)), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)

    assert [request.code for request in master.asked] == [45, 21, 43, 201]
    assert tables.offsets == {KEY: {0: 5, 1: 6}}
    assert tables.taken.keys() == {"topics", "delay", "groups"}
    assert (sync.rounds, tables.adoptions, tables.asked) == (1, 0, 4)
    assert tables.master_appends is False


async def test_a_master_whose_tables_are_in_its_log_is_asked_for_nothing_else() -> None:
    """Only what consumers have committed here is handed to it, and only forward; what it has come to itself stays."""
    master, tables = (
        Master(
            {**BODIES, RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:5},"tablesAppended":true,"tablesLogOffset":700}'}
        ),
        Tables(),
    )
    tables.in_log, tables.commits = True, [("T", "G", 0, 9)]
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)

    assert [request.code for request in master.asked] == [45, 15]
    assert tables.master_appends is True
    assert master.asked[1].ext == {
        "topic": "T",
        "consumerGroup": "G",
        "queueId": "0",
        "commitOffset": "9",
        "onlyForward": "true",
    }
    assert (tables.commits, tables.taken, tables.copied_end, sync.rounds) == ([], {}, None, 1)


async def test_a_slave_whose_tables_came_from_another_log_copies_them_once() -> None:
    """Whatever their version is; they are what the log says once it is derived up to where the master was then."""
    master, tables = (
        Master({**BODIES, RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:5},"tablesLogOffset":700}'}),
        Tables(),
    )
    tables.taken["topics"] = {"dataVersion": VERSION}
    async with serving(master) as address:
        await ConfigSync(tables, TcpNetwork()).round(address)

    assert [request.code for request in master.asked] == [45, 21, 43, 201, 60003, 45]
    assert tables.offsets == {KEY: {0: 5, 1: 6}}
    assert tables.taken["topics"]["topicConfigTable"].keys() == {"T"}
    assert tables.copied_end == 700


async def test_users_and_rights_are_copied_from_a_master_of_ours_in_signed_requests() -> None:
    """The master may check who asks; a slave that does not get its users does not count its copies as complete."""
    users = {"users": {"alice": {"password": "hush"}}, "acls": {}}
    master, tables = (
        Master({**BODIES, RequestCode.GET_ALL_DELAY_OFFSET: b'{"tablesLogOffset":700}', RequestCode.GET_ALL_ACCESS: users}),
        Tables(),
    )
    async with serving(master) as address:
        await ConfigSync(tables, TcpNetwork(), credentials=node_credentials(b"secret")).round(address)

    node = node_credentials(b"secret")
    assert node is not None
    assert tables.taken["access"] == users
    assert all(is_signed(request, node.secret_key) for request in master.asked)


@pytest.mark.parametrize("masters", [b"", b"other", b"secret"])
async def test_a_stranger_s_tables_are_not_taken(masters: bytes) -> None:
    """Whoever is registered as master must prove that it shares the secret, or no table of the slave changes."""
    master, tables = Master(dict(BODIES), masters), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork(), secret=b"secret", secrets=random.SystemRandom())
        with capture_logs() as logs:
            await sync.round(address)
            await sync.round(address)

    if masters == b"secret":
        assert tables.taken.keys() == {"topics", "delay", "groups"}
        assert "slave_sync_failed" not in [entry["event"] for entry in logs]
    else:
        assert tables.taken == tables.offsets == {}
        (entry,) = [entry for entry in logs if entry["event"] == "slave_sync_failed"]
        assert "does not prove" in str(entry["consumer_offsets"])


async def test_tables_of_the_same_version_are_not_taken_again() -> None:
    """Only another version replaces topics and groups."""
    master, tables = Master(dict(BODIES)), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)
        tables.taken["topics"] = kept = {"dataVersion": VERSION}
        await sync.round(address)

    assert tables.taken["topics"] is kept


async def test_a_table_that_does_not_come_keeps_no_other_from_coming() -> None:
    """A refusal, a broken body and a body of another shape are said once, if they come again, and what we had stays."""
    broken = {
        **BODIES,
        RequestCode.GET_ALL_TOPIC_CONFIG: None,
        RequestCode.GET_ALL_DELAY_OFFSET: b"{",
        RequestCode.GET_ALL_CONSUMER_OFFSET: b"[1]",
    }
    master, tables = Master(broken), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        with capture_logs() as first:
            await sync.round(address)
        with capture_logs() as logs:
            await sync.round(address)
            await sync.round(address)

    assert tables.taken.keys() == {"groups"}
    assert "slave_sync_failed" not in [entry["event"] for entry in first]
    (said,) = [entry for entry in logs if entry["event"] == "slave_sync_failed"]
    assert {"topics", "consumer_offsets", "delay_offsets"} <= said.keys()
    assert sync.rounds == 0


async def test_offsets_committed_here_are_committed_at_the_master() -> None:
    """As a consumer would, request by request."""
    master, tables = Master(dict(BODIES)), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)
        tables.offsets[KEY][1] = 60
        await sync.round(address)

    commits = [request.ext for request in master.asked if request.code == RequestCode.UPDATE_CONSUMER_OFFSET]
    assert commits == [{"topic": "T", "consumerGroup": "G", "queueId": "1", "commitOffset": "60", "onlyForward": "true"}]
    assert tables.offsets[KEY] == {0: 5, 1: 60}


async def test_what_a_master_makes_of_an_offset_counts() -> None:
    """A master that has lost messages takes the end of its queue instead; the offset is not handed over a second time."""
    master, tables = Master(dict(BODIES)), Tables()
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)
        tables.offsets[KEY][1] = 60
        await sync.round(address)
        master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = b'{"offsetTable":{"T@G":{0:5,1:40}}}'
        await sync.round(address)
        await sync.round(address)

    assert [request.ext["commitOffset"] for request in master.asked if request.code == RequestCode.UPDATE_CONSUMER_OFFSET] == [
        "60"
    ]
    assert tables.offsets[KEY] == {0: 5, 1: 40}


async def test_offsets_are_handed_over_a_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave that consumers read for long has many; the rest follow in the next rounds."""
    monkeypatch.setattr("ledgermq.ha.classic.sync.PUSHES_MAX", 2)
    master, tables = Master(dict(BODIES)), Tables()

    def handed_over() -> list[str]:
        return [request.ext["queueId"] for request in master.asked if request.code == RequestCode.UPDATE_CONSUMER_OFFSET]

    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)
        tables.offsets[KEY] |= {0: 50, 1: 60, 2: 70}
        await sync.round(address)
        assert handed_over() == ["0", "1"]

        master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = b'{"offsetTable":{"T@G":{0:50,1:60}}}'
        await sync.round(address)
        assert handed_over() == ["0", "1", "2"]


async def test_a_large_table_is_read_and_merged_in_parts_while_consumers_commit_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that commits on the slave between two parts keeps its offset, whether its key was merged before or not."""
    monkeypatch.setattr("ledgermq.ha.classic.sync.ROWS_PER_SLICE", 30)
    monkeypatch.setattr("ledgermq.ha.classic.sync.PART_BYTES", 200)
    monkeypatch.setattr("ledgermq.ha.classic.sync.PUSHES_MAX", 1 << 30)
    entries = ",".join(f'"T{n}@G":{{0:5,1:5}}' for n in range(300))
    master, tables = (
        Master({**BODIES, RequestCode.GET_ALL_CONSUMER_OFFSET: f'{{"offsetTable":{{{entries}}}}}'.encode()}),
        Tables(),
    )
    async with serving(master) as address:
        sync = ConfigSync(tables, TcpNetwork())
        await sync.round(address)
        assert tables.offsets == {(f"T{n}", "G"): {0: 5, 1: 5} for n in range(300)}
        committed, parts = dict[tuple[str, str], int](), 0
        merge = OffsetMerge.merge

        def merge_and_commit(self: OffsetMerge, own: Offsets, masters: Offsets, keys: Iterable[tuple[str, str]]) -> Any:
            nonlocal parts
            parts += 1
            before = (f"T{(37 * parts) % 300}", "G")
            if parts <= 30:
                committed[before] = own[before][0] = 100 + parts
            return merge(self, own, masters, keys)

        monkeypatch.setattr(OffsetMerge, "merge", merge_and_commit)
        await sync.round(address)
        await sync.round(address)

    commits = [request.ext for request in master.asked if request.code == RequestCode.UPDATE_CONSUMER_OFFSET]
    assert parts == 60
    assert {(ext["topic"], "G"): int(ext["commitOffset"]) for ext in commits} == committed


@pytest.mark.parametrize("name", ["T},", '}},"', "{T"])
async def test_a_table_that_cannot_be_cut_is_read_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with braces looks like the border of two entries; no offset is lost or changed."""
    monkeypatch.setattr("ledgermq.ha.classic.sync.PART_BYTES", 1)
    table = dumps({f"{name}{n}@G": {"0": n} for n in range(5)})
    wanted = {(f"{name}{n}", "G"): {0: n} for n in range(5)}
    for written in (b'{"offsetTable":%b}', b'{"offsetTable":%b,"dataVersion":{"counter":1}}', b'{"offsetTable": %b}'):
        master, tables = Master({**BODIES, RequestCode.GET_ALL_CONSUMER_OFFSET: written % table}), Tables()
        async with serving(master) as address:
            await ConfigSync(tables, TcpNetwork()).round(address)
        assert tables.offsets == wanted


async def test_an_answer_without_offsets_is_an_empty_table() -> None:
    """As a master writes it that has none, or no such table."""
    for body in (b'{"offsetTable":{}}', b'{"offsetTable":null}', b"{}", b""):
        master, tables = Master({**BODIES, RequestCode.GET_ALL_CONSUMER_OFFSET: body}), Tables()
        async with serving(master) as address:
            sync = ConfigSync(tables, TcpNetwork())
            await sync.round(address)
        assert (sync.rounds, tables.offsets) == (1, {})


async def test_another_master_is_asked_at_once() -> None:
    """However long the period is."""
    master = Master(dict(BODIES))
    async with serving(master) as address, trio.open_nursery() as nursery:
        sync = ConfigSync(Tables(), TcpNetwork(), period_seconds=3600)
        sync.follow(Address("127.0.0.1", 9))
        nursery.start_soon(sync.run)
        await trio.sleep(0.1)

        sync.follow(address)
        with trio.fail_after(60):
            while not sync.rounds:  # noqa: ASYNC110 - a real network
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_master_that_is_away_is_asked_again() -> None:
    """The first round fails, a later one succeeds."""
    master, tables = Master(dict(BODIES)), Tables()
    async with serving(master) as address, trio.open_nursery() as nursery:
        sync = ConfigSync(tables, TcpNetwork(), period_seconds=0.05)
        sync.follow(Address("127.0.0.1", 9))
        nursery.start_soon(sync.run)
        await trio.sleep(0.2)
        assert sync.rounds == 0

        sync.follow(address)
        with trio.fail_after(60):
            while sync.rounds < 2:  # noqa: ASYNC110 - a real network
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_a_master_whose_log_is_not_followed_is_not_asked() -> None:
    """Its tables may be those of an older copy of its store; once the logs have been found to agree they are taken at once."""
    master, tables, follows = Master(dict(BODIES)), Tables(), list[bool]()
    async with serving(master) as address, trio.open_nursery() as nursery:
        sync = ConfigSync(tables, TcpNetwork(), period_seconds=3600, may_take=lambda: bool(follows))
        sync.follow(address)
        nursery.start_soon(sync.run)
        with trio.fail_after(60):
            while not tables.adoptions:  # noqa: ASYNC110 - a real network
                await trio.sleep(0.01)
        assert master.asked == []

        follows.append(True)
        sync.ask_now()
        with trio.fail_after(60):
            while not sync.rounds:  # noqa: ASYNC110 - a real network
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
