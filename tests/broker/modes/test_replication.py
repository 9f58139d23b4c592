"""A master and its slave as brokers: they find each other through a name server, and clients get true answers."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.numbered_sends import NUMBERS_FILE
from ledgermq.broker.tables.persistence import GROUPS_FILE, IN_LOG_KEY, LOG_DERIVED, LOG_OFFSET_KEY, OFFSETS_FILE, TOPICS_FILE
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.admin import open_admin
from ledgermq.client.errors import NoRoute
from ledgermq.ha.classic.authenticated import AuthenticatedSlave
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.ha.classic.master import SWEEP_SECONDS
from ledgermq.message.json import loads
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.signature import Credentials
from ledgermq.store.json_file import JsonFile
from ledgermq.store.message_store import MessageStore
from ledgermq.world.disk import RealDisk
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from ..access.scene import ADMIN, ALICE, BOOTSTRAP, allow, create_user
from ..desk import Desk, Peer, classic_node, open_desk, until

SLAVE = {"broker_role": "SLAVE", "broker_id": 1, "sync_from": "first"}


@attrs.define
class Group:
    """A name server, and the place for a master and its slave."""

    namesrv: str
    directory: Path

    @asynccontextmanager
    async def desk(self, name: str, **settings: Any) -> AsyncGenerator[Desk]:
        """A broker that asks its master each 0.2 s, if it is a slave: a test does not wait for 10 s."""
        given: dict[str, Any] = {"ha_secret": "s", **settings}
        async with open_desk(self.directory / name, namesrv_addr=self.namesrv, **given) as desk:
            if (sync := desk.broker.replication.sync) is not None:
                sync.period_seconds = 0.2
                sync.ask_now()
            yield desk


@asynccontextmanager
async def open_group(directory: Path) -> AsyncGenerator[Group]:
    async with open_namesrv(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), real_world()) as namesrv:
        yield Group(str(namesrv.address), directory)


def joined(master: Desk) -> bool:
    service = classic_node(master.broker).service
    return service is not None and service.acks.slave_count > 0


async def answered(peer: Peer, opaque: int) -> Any:
    found: list[Any] = []

    def look() -> bool:
        answer = peer.answer(opaque)
        if answer is not None:
            found.append(answer)
        return bool(found)

    await until(look)
    return found[0]


def post_send(peer: Peer, **properties: str) -> int:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    ext = {"a": "pg", "b": "T1", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": text, "j": 0, "k": "false"}
    return peer.post(RequestCode.SEND_MESSAGE_V2, {**ext, "m": "false"}, b"hello")


async def test_a_slave_finds_its_master_and_becomes_like_it(tmp_path: Path) -> None:
    """Log, topics and consumer offsets arrive; pulls are served by the slave, sends are not."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        client = master.peer()
        await client.send_waiting("T1", b"one")
        client.heartbeat("g", "T1")
        master.broker.offsets.commit("g", "T1", 0, 1)
        await until(lambda: joined(master))
        client.send("T1", b"two")
        sync = slave.broker.replication.sync
        assert sync is not None
        assert sync.master is not None
        await sync.round(sync.master)
        await until(lambda: slave.broker.store.max_offset("T1", 0) == 2)

        reader = slave.peer()
        assert [message.body for message in reader.pulled("T1")] == [b"one", b"two"]
        await until(lambda: slave.broker.offsets.query("g", "T1", 0) == 1)  # once the commit is in the log
        refused = reader.send("T1")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "slave" in (refused.remark or "")


async def test_a_slave_forgets_what_its_master_deletes_and_writes_down_what_it_has_delivered(tmp_path: Path) -> None:
    """Topics and groups that are gone go from the slave's files too; where deliveries of delayed messages stand is in one."""
    settings = {"message_delay_level": "1s 1h", "flush_delay_offset_interval": 50}
    async with (
        open_group(tmp_path) as group,
        group.desk("m", **settings) as master,
        group.desk("s", **SLAVE, **settings) as slave,
    ):
        sync = slave.broker.replication.sync
        assert sync is not None
        await until(lambda: sync.master is not None)
        assert sync.master is not None
        client = master.peer()
        await client.send_waiting("Short", b"", DELAY="1")
        await client.send_waiting("Gone", b"")
        client.heartbeat("leaving", "Gone")
        await until(lambda: master.broker.delay.offsets()[1] == 1)
        await until(lambda: slave.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1)
        await sync.round(sync.master)
        assert slave.broker.topics.get("Gone") is not None
        assert slave.broker.groups.get("leaving") is not None

        for code, ext in (
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "leaving"}),
        ):
            assert (await client.ask_waiting(code, ext)).code == ResponseCode.SUCCESS

        def kept(name: str) -> Any:
            with suppress(FileNotFoundError):  # a table's file is replaced as a whole, so for a moment there is none
                return loads((tmp_path / "s" / "config" / name).read_bytes())
            return {}

        await until(lambda: "Gone" not in kept("topics.json").get("topicConfigTable", {"Gone": 0}))
        await until(lambda: "leaving" not in kept("subscriptionGroup.json").get("subscriptionGroupTable", {"leaving": 0}))
        await until(lambda: kept("delayOffset.json").get("offsetTable") == {"1": 1, "2": 0})


async def test_a_slave_serves_a_topic_as_soon_as_its_log_has_it(tmp_path: Path) -> None:
    """The master is asked for nothing; a topic that it has deleted stays deleted."""
    async with open_group(tmp_path) as group, group.desk("s", **SLAVE) as slave:
        async with group.desk("m") as master:
            sync = slave.broker.replication.sync
            assert sync is not None
            await until(lambda: joined(master) and sync.rounds)
            client = master.peer()
            await client.send_waiting("Gone", b"deleted")
            await until(lambda: slave.broker.store.max_offset("Gone", 0) == 1)
            address = Address.parse(master.broker.address)
            await sync.round(address)
            await client.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
            await client.send_waiting("Late", b"one")
            await until(lambda: slave.broker.store.max_offset("Late", 0) == 1)
            reader = slave.peer()

        assert [message.body for message in reader.pulled("Late")] == [b"one"]
        assert "Gone" not in slave.broker.topics.topics


async def test_a_promoted_slave_has_every_change_that_its_log_has(tmp_path: Path) -> None:
    """The master dies a moment after its last changes, before the slave has asked it for anything; nothing is guessed."""
    queue = {"brokerName": "b1", "queueId": 1, "topic": "T"}
    async with (
        open_group(tmp_path) as group,
        group.desk("m", broker_role="SYNC_MASTER") as master,
        group.desk("s", **SLAVE) as slave,
    ):
        sync = slave.broker.replication.sync
        assert sync is not None
        await until(lambda: joined(master) and sync.rounds and slave.broker.tables.in_log)
        client, tables = master.peer(), master.broker.table_log
        tables.put_topics(TopicConfig("T", 3, 3), TopicConfig("Gone", 1, 1))
        tables.put_topics(TopicConfig("T", 5, 5, 4))
        tables.put_groups(GroupConfig("g", retry_max_times=7))
        tables.set_forbidden("g", "T", forbidden=True)
        for _ in range(4):
            master.put("T", queue_id=1)
        master.broker.commits.commit("g", "T", 1, 3)
        lock = {"clientId": "c1", "consumerGroup": "g", "mqSet": [queue]}
        assert loads((await client.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, lock)).body)["lockOKMQSet"] == [queue]
        assert (await client.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})).code == ResponseCode.SUCCESS
        await master.broker.table_log.append_gathered()
        end = master.broker.store.log.max_offset
        await until(lambda: slave.broker.store.dispatcher.dispatched_offset == end)
        shutil.copytree(tmp_path / "s", tmp_path / "promoted", ignore=shutil.ignore_patterns("*.tmp"))
    async with open_desk(tmp_path / "promoted", broker_role="SYNC_MASTER") as desk:
        broker = desk.broker
        assert broker.topics.get("T") == TopicConfig("T", 5, 5, 4)
        assert broker.topics.get("Gone") is None
        assert broker.groups.get("g") == GroupConfig("g", retry_max_times=7)
        assert broker.groups.is_forbidden("g", "T")
        assert broker.offsets.of("g", "T") == {1: 3}
        assert [row[3] for row in broker.locks.rows_of("g")] == ["c1"]


async def test_a_slave_s_files_say_that_its_log_lacks_events_before_these_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that is killed when its log has grown again has lost events in its tables, and could not know it."""
    said, cut = list[Any](), MessageStore.cut

    def in_log() -> list[Any]:
        tables = [
            JsonFile(RealDisk(), f"{tmp_path}/s/config/{name}").load() for name in (TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE)
        ]
        return [table and table[IN_LOG_KEY] for table in tables]

    async def read_and_cut(store: MessageStore, offset: int) -> None:
        said.extend(in_log())
        await cut(store, offset)

    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        sync, client = slave.broker.replication.sync, classic_node(slave.broker).client
        assert sync is not None
        assert client is not None
        await until(lambda: joined(master) and sync.rounds and slave.broker.tables.in_log)
        end = master.broker.store.log.max_offset
        master.broker.table_log.put_topics(TopicConfig("Lost", 3, 3))
        await until(lambda: slave.broker.topics.get("Lost") is not None)
        await slave.broker.persistence.write_all(always=True)
        assert in_log() == [True, True, True]

        with monkeypatch.context() as patched:
            patched.setattr(MessageStore, "cut", read_and_cut)
            await client.follower.cut(end)

    assert said == [False, False, False]


async def test_an_offset_that_a_slave_s_log_never_had_goes_although_its_master_states_all_tables(tmp_path: Path) -> None:
    """A power cut has taken the end of both logs, and the slave's file is newer; the statement does not name what it lacks."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        sync = slave.broker.replication.sync
        assert sync is not None
        await until(lambda: joined(master) and sync.rounds and slave.broker.tables.in_log)
        sync.may_take = lambda: False  # only what this test asks for is copied
        master.broker.table_log.put_topics(TopicConfig("T"))
        slave.broker.offsets.take("g", "T", 0, 5)
        slave.broker.tables.differ_from_log()
        await master.broker.table_log.state(master.broker.store.log.max_offset)
        end = master.broker.store.log.max_offset
        await until(lambda: slave.broker.store.dispatcher.dispatched_offset == end)

        await sync.round(Address.parse(master.broker.address))

        assert slave.broker.offsets.query("g", "T", 0) is None
        sync.may_take = lambda: True
        await until(lambda: slave.broker.tables.in_log)


async def test_where_no_master_can_be_asked_nothing_is_not_the_answer(tmp_path: Path) -> None:
    """A slave knows neither groups nor positions for sure: to say that there are none would be wrong."""
    async with open_group(tmp_path) as group, group.desk("s", **SLAVE), open_admin(group.namesrv) as admin:
        async with group.desk("m") as master:
            await admin.create_topic("T")
            await until(lambda: joined(master))

        for ask in (admin.groups(), admin.group_stats("g"), admin.group_connections("g"), admin.create_topic("U")):
            with pytest.raises(NoRoute, match="no broker to ask: every broker has lost its master"):
                await ask
        for ask in (admin.topic_stats("T"), admin.topic_groups("T"), admin.reset_offsets("g", "T", 0)):
            with pytest.raises(NoRoute, match="'T': every broker with the topic has lost its master"):
                await ask


async def test_the_wire_says_what_became_of_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """11 without a slave, 0 with one, 12 when it does not answer in time, 0 at once with WAIT=false."""
    async with open_group(tmp_path) as group, group.desk("m", broker_role="SYNC_MASTER", slave_timeout=60_000) as master:
        client = master.peer()
        assert (await answered(client, post_send(client))).code == ResponseCode.SLAVE_NOT_AVAILABLE

        async with group.desk("s", **SLAVE):
            await until(lambda: joined(master))
            assert (await answered(client, post_send(client))).code == ResponseCode.SUCCESS

            monkeypatch.setattr(AuthenticatedSlave, "report", silent)  # it goes on, but says nothing
            log = master.broker.store.log
            assert isinstance(log, ClassicCommitLog)
            log.settings = attrs.evolve(log.settings, slave_timeout_seconds=0.2)
            assert (await answered(client, post_send(client))).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert client.ask(*_unawaited()).code == ResponseCode.SUCCESS


def silent(_core: AuthenticatedSlave, _now: float) -> bytes:
    return b""


def _unawaited() -> tuple[int, dict[str, Any], bytes]:
    ext = {"a": "pg", "b": "T1", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "WAIT\x01false\x02", "j": 0}
    return RequestCode.SEND_MESSAGE_V2, {**ext, "k": "false", "m": "false"}, b"hello"


async def test_both_sides_tell_how_replication_stands(tmp_path: Path) -> None:
    """GET_BROKER_HA_STATUS names slaves, their lag and their last ack; a slave names its master."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        master.put("T1")
        await until(lambda: joined(master))
        await until(lambda: slave.broker.store.log.max_offset == master.broker.store.log.max_offset)
        end = master.broker.store.log.max_offset

        def status(desk: Desk) -> dict[str, Any]:
            return loads(desk.peer().ask(RequestCode.GET_BROKER_HA_STATUS).body)  # type: ignore[no-any-return]

        await until(lambda: status(master)["haConnectionInfo"][0]["slaveAckOffset"] == end)
        found = status(master)
        assert (found["master"], found["masterCommitLogMaxOffset"], found["inSyncSlaveNums"]) == (True, end, 1)
        (connection,) = found["haConnectionInfo"]
        assert (connection["brokerId"], connection["diff"]) == (1, 0)
        assert 0 <= connection["lastAckMillis"] < 10_000
        found = status(slave)["haClientRuntimeInfo"]
        assert (found["masterAddr"], found["maxOffset"], found["activated"], found["diff"]) == (
            master.broker.ha_address, end, True, 0,
        )  # fmt: skip
        assert found["masterFlushOffset"] == -1
        assert (found.get("refusal"), found["droppedBytes"], found["droppedPromisedBytes"]) == (None, 0, 0)


async def test_both_sides_tell_how_fast_the_log_travels(tmp_path: Path) -> None:
    """The rates are those of bytes that left and arrived within the last seconds, and are gone with the connection."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        await until(lambda: joined(master))
        service, client = classic_node(master.broker).service, classic_node(slave.broker).client
        assert service is not None
        assert client is not None

        def rates() -> tuple[int, int]:
            master.put("T1", b"x" * 1000)
            found = [loads(desk.peer().ask(RequestCode.GET_BROKER_HA_STATUS).body) for desk in (master, slave)]
            sent = found[0]["haConnectionInfo"][0]["transferredByteInSecond"]
            return sent, found[1]["haClientRuntimeInfo"]["transferredByteInSecond"]

        began = trio.current_time()
        await until(lambda: all(rates()))
        at_most = master.broker.store.log.max_offset / SWEEP_SECONDS
        assert trio.current_time() - began >= SWEEP_SECONDS, "a rate takes two looks"
        assert all(0 < rate <= at_most for rate in rates())

        for connection in list(service.connections):
            connection.scope.cancel()
        await until(lambda: client.joined_at is None)
        assert client.received.per_second == 0


async def test_offsets_committed_at_the_slave_reach_the_master_that_returns(tmp_path: Path) -> None:
    """While the master is away consumers commit at the slave; its return takes nothing back."""
    async with open_group(tmp_path) as group, group.desk("s", **SLAVE) as slave:
        async with group.desk("m") as master:
            master.broker.table_log.put_topics(TopicConfig("T1"))
            for _ in range(30):
                master.put("T1")
            master.broker.offsets.commit("g", "T1", 0, 10)
            sync = slave.broker.replication.sync
            assert sync is not None
            await until(lambda: sync.master is not None)
            assert sync.master is not None
            await sync.round(sync.master)
            ports = {"listen_port": sync.master.port, "ha_listen_port": classic_node(master.broker).port}
        slave.broker.offsets.commit("g", "T1", 0, 25)

        async with group.desk("m", **ports) as master:
            await until(lambda: slave.broker.tables.in_log and joined(master))
            await sync.round(Address.parse(master.broker.address))
            assert slave.broker.offsets.query("g", "T1", 0) == 25
            assert master.broker.offsets.query("g", "T1", 0) == 25
            await until(lambda: not slave.broker.offsets.logged)
            assert slave.broker.offsets.query("g", "T1", 0) == 25


async def test_a_slave_keeps_what_was_committed_there_over_its_restart(tmp_path: Path) -> None:
    """It is ahead of the log, so it is in the slave's file until the master is back."""
    async with open_group(tmp_path) as group:
        async with group.desk("m") as master, group.desk("s", **SLAVE) as slave:
            master.broker.table_log.put_topics(TopicConfig("T1"))
            for _ in range(30):
                master.put("T1")
            await until(lambda: slave.broker.store.max_offset("T1", 0) == 30)
        async with group.desk("s", **SLAVE) as slave:
            slave.broker.offsets.commit("g", "T1", 0, 25)

        async with group.desk("m") as master, group.desk("s", **SLAVE) as slave:
            assert slave.broker.offsets.query("g", "T1", 0) == 25
            await until(lambda: slave.broker.tables.in_log and joined(master))
            sync = slave.broker.replication.sync
            assert sync is not None
            await sync.round(Address.parse(master.broker.address))
            assert master.broker.offsets.query("g", "T1", 0) == 25


async def test_a_master_s_address_given_by_hand_is_kept(tmp_path: Path) -> None:
    """Whatever name servers say of its HA port; what is asked of its other port they still decide."""
    async with open_group(tmp_path) as group, group.desk("m") as master:
        elsewhere = Address("127.0.0.1", 1)
        async with group.desk("s", **SLAVE, ha_master_address=str(elsewhere)) as slave:
            replication = slave.broker.replication
            sync, client = replication.sync, classic_node(slave.broker).client
            assert sync is not None
            assert client is not None
            await until(lambda: sync.master == Address.parse(master.broker.address))
            assert client.master == elsewhere

            slave.broker.role.learn_master("127.0.0.1:2", "127.0.0.1:3")
            assert (sync.master, client.master) == (Address("127.0.0.1", 2), elsewhere)


async def test_no_group_gets_beyond_the_end_of_a_queue(tmp_path: Path) -> None:
    """A commit is at most the end of the master's queue, and a slave that is cut moves its groups back."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        await until(lambda: joined(master))
        client = master.peer()
        for _ in range(10):
            await client.send_waiting("T", b"one")
        client.heartbeat("g", "T")
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 30}
        assert client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS
        assert master.broker.offsets.query("g", "T", 0) == 10

        await until(lambda: slave.broker.store.max_offset("T", 0) == 10)
        slave.broker.offsets.commit("g", "T", 0, 10)
        unit = slave.broker.store.unit("T", 0, 4)
        assert unit is not None
        await slave.broker.store.cut(unit[0])
        assert slave.broker.offsets.query("g", "T", 0) == 4


@pytest.mark.parametrize("has_derived", [True, False])
async def test_a_slave_whose_files_cannot_say_that_its_log_was_cut_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_derived: bool
) -> None:
    """Once the log has grown again, a start would take what was cut for a part of it. The cut is tried again later."""
    async with open_group(tmp_path) as group:
        async with group.desk("s", **SLAVE) as slave, group.desk("m") as master:
            master.broker.table_log.put_topics(TopicConfig("T1"))
            await until(lambda: slave.broker.tables.in_log and "T1" in slave.broker.topics.topics)
        async with group.desk("s", **SLAVE) as slave:
            broker, node = slave.broker, classic_node(slave.broker)
            end = broker.store.dispatcher.dispatched_offset
            if not has_derived:
                broker.store.dispatcher.dispatched_offset = 0
            with monkeypatch.context() as patch:
                patch.setattr(JsonFile, "save", _fail)
                for _ in range(2):
                    with pytest.raises(OSError, match="files of the tables"):
                        await node.before_cut(end - 1)
            await node.before_cut(end - 1)
            files = [loads((tmp_path / "s" / "config" / name).read_bytes()) for name in (*LOG_DERIVED, NUMBERS_FILE)]
            assert max(file[LOG_OFFSET_KEY] for file in files) < end
            assert [file[IN_LOG_KEY] for file in files[:-1]] == [False] * len(LOG_DERIVED)


def _fail(_file: JsonFile, _content: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


SECURED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": BOOTSTRAP,
}


async def test_users_and_rights_are_on_the_slave_and_stay_when_it_becomes_master(tmp_path: Path) -> None:
    """It begins in the middle of the log, behind the events of the users, and its requests are proved by the secret."""
    settings = {"mapped_file_size_commit_log": 1 << 16, **SECURED}
    async with open_group(tmp_path) as group:
        async with group.desk("m", **settings) as master:
            admin = master.peer(ADMIN)
            create_user(admin)
            allow(admin, "Topic:T1", "Pub")
            master.broker.topics.put(TopicConfig("T1", 4, 4))
            for _ in range(3):
                master.put("T1", b"x" * 40_000)
            async with group.desk("s", **{**SLAVE, "sync_from": "last"}, **settings) as slave:
                await until(lambda: joined(master) and slave.broker.tables.access.acls == master.broker.tables.access.acls)
                assert slave.broker.store.log.min_offset > 0
                assert "alice" in slave.broker.tables.access.users  # a statement has users before their rights
                await until(lambda: slave.broker.tables.in_log)
                create_user(admin, Credentials("bob", "later"))
                await until(lambda: "bob" in slave.broker.tables.access.users)
                refused_reader = slave.peer().ask(RequestCode.GET_BROKER_CONFIG)
        async with group.desk("s", **settings) as promoted:
            sent = promoted.peer(ALICE).send("T1")

    assert refused_reader.code == ResponseCode.NO_PERMISSION
    assert sent.code == ResponseCode.SUCCESS, sent.remark


@pytest.mark.parametrize("named", [False, True])
async def test_a_slave_without_a_secret_signs_with_the_credentials_of_the_configuration(tmp_path: Path, *, named: bool) -> None:
    """As a slave of Apache's does; without them a master with access control gives it no tables."""
    inner = {"inner_client_authentication_credentials": '{"accessKey": "slave", "secretKey": "x"}'} if named else {}
    settings = {"ha_secret": "", **SECURED, **inner}
    async with open_group(tmp_path) as group, group.desk("m", **settings) as master:
        create_user(master.peer(ADMIN))
        async with group.desk("s", **SLAVE, **settings) as slave:
            sync = slave.broker.replication.sync
            assert sync is not None
            await until(lambda: joined(master) and sync.master is not None)
            assert sync.master is not None
            await sync.round(sync.master)
            assert bool(sync.rounds) == named
