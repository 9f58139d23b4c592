"""The route table, without any connection."""

from __future__ import annotations

import attrs
import pytest

from ledgermq.message.data_version import DataVersion
from ledgermq.namesrv import routes as module
from ledgermq.namesrv.bounds import BROKERS_OF_CONNECTION_MAX
from ledgermq.namesrv.registration import RegisteredTopics, TopicConfig
from ledgermq.namesrv.routes import Broker, MinIdChange, Registered, RouteTable
from ledgermq.remoting.errors import RequestRefused

RW = TopicConfig(4, 4, 6)
TBW102 = TopicConfig(8, 8, 7)
V1, V2 = DataVersion(1, 1000), DataVersion(2, 2000)

MASTER = Broker("c1", "b1", 0, "10.0.0.1:10911", "10.0.0.1:10912")
SLAVE = Broker("c1", "b1", 1, "10.0.0.2:10911", "10.0.0.2:10912")
OTHER = Broker("c2", "b2", 0, "10.0.0.3:10911", "10.0.0.3:10912")


def topics(version: DataVersion = V1, /, **configs: TopicConfig) -> RegisteredTopics:
    return RegisteredTopics(version, {"TBW102": TBW102, **configs})


def table_of(*brokers: Broker, **configs: TopicConfig) -> RouteTable[str]:
    table = RouteTable[str]()
    for broker in brokers:
        table.register(broker, topics(V1, **(configs or {"T": RW})), broker.address, 0.0)
    return table


def queues(table: RouteTable[str], topic: str) -> dict[str, tuple[int, int]]:
    """Broker name to write queues and permission."""
    route = table.route(topic)
    assert route is not None
    return {data["brokerName"]: (data["writeQueueNums"], data["perm"]) for data in route["queueDatas"]}


def test_a_route_names_every_broker_and_its_queues() -> None:
    """Routes give clients addresses by id, and queues by broker name."""
    table = table_of(MASTER, SLAVE, OTHER)

    assert table.route("T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {0: MASTER.address, 1: SLAVE.address},
                "brokerName": "b1",
                "cluster": "c1",
                "enableActingMaster": False,
                "zoneName": None,
            },
            {
                "brokerAddrs": {0: OTHER.address},
                "brokerName": "b2",
                "cluster": "c2",
                "enableActingMaster": False,
                "zoneName": None,
            },
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "b1", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4},
            {"brokerName": "b2", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4},
        ],
    }


def test_an_unknown_topic_has_no_route_not_an_empty_one() -> None:
    """An empty route would let clients believe in a topic without queues."""
    assert table_of(MASTER).route("nowhere") is None


def test_a_slave_learns_its_master_and_brings_no_topics() -> None:
    """Topics are those of the master; a slave only adds its address."""
    table = RouteTable[str]()

    alone = table.register(SLAVE, topics(Own=RW), "s", 0.0)
    assert alone == Registered()
    assert table.route("Own") is None

    table.register(MASTER, topics(T=RW), "m", 0.0)
    assert table.register(SLAVE, topics(), "s", 1.0) == Registered(MASTER.address, MASTER.ha_address)
    assert table.register(MASTER, topics(), "m", 1.0) == Registered()


def test_a_registration_adds_and_changes_topics_but_removes_none() -> None:
    """A broker deletes topics by name; a registration without them is an incremental one."""
    table = table_of(MASTER, T=RW)

    table.register(MASTER, RegisteredTopics(V2, {"New": RW}), "m", 1.0)
    assert set(table.all_topics()) == {"T", "New", "TBW102"}

    table.register(MASTER, topics(DataVersion(3, 3000), T=attrs.evolve(RW, write_queue_nums=8)), "m", 2.0)
    assert queues(table, "T") == {"b1": (8, 6)}


def test_a_registration_may_remove_what_it_lacks() -> None:
    """RocketMQ's switch deleteTopicWithBrokerRegistration."""
    table = table_of(MASTER, OTHER, T=RW)

    table.register(MASTER, topics(V2), "m", 1.0, forget_missing_topics=True)

    assert queues(table, "T") == {"b2": (4, 6)}


def test_the_same_version_brings_only_topics_that_are_missing() -> None:
    """What an administrator changed here stays until the broker's own topics change."""
    table = table_of(MASTER, T=RW)
    table.wipe_write_permission("b1")
    table.delete_topic("TBW102")

    table.register(MASTER, topics(V1, T=RW), "m", 1.0)
    assert queues(table, "T") == {"b1": (4, 4)}
    assert queues(table, "TBW102") == {"b1": (8, 7)}

    table.register(MASTER, topics(V2, T=RW), "m", 2.0)
    assert queues(table, "T") == {"b1": (4, 6)}


def test_one_topic_of_a_broker_that_never_registered_in_full_is_refused() -> None:
    """After a restart of the name server, an increment must not pass for all of a broker's topics."""
    table = RouteTable[str]()

    with pytest.raises(RequestRefused, match="one topic before all"):
        table.register(MASTER, RegisteredTopics(V1, {"T": RW}), "m", 0.0)

    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert table.all_topics() == []


def test_a_changed_address_replaces_the_old_one() -> None:
    """A master that comes back elsewhere is the same master; its old address is no longer alive."""
    table = table_of(MASTER)
    moved = attrs.evolve(MASTER, address="10.0.0.9:10911")

    table.register(moved, topics(V2), "m2", 1.0)

    assert table.members("c1", "b1")["brokerAddrs"] == {0: moved.address}
    assert table.connection_closed(MASTER.address) == []
    assert table.route("T") is not None


def test_an_older_state_from_another_address_does_not_replace_a_younger_one() -> None:
    """A master that was replaced under its own id may wake up late."""
    table = RouteTable[str]()
    table.register(MASTER, topics(DataVersion(1, 1, state_version=5), T=RW), "m", 0.0)
    ghost = attrs.evolve(MASTER, address="10.0.0.9:10911")

    with pytest.raises(RequestRefused, match="later state"):
        table.register(ghost, topics(DataVersion(9, 9, state_version=4), T=RW), "g", 1.0)

    assert table.members("c1", "b1")["brokerAddrs"] == {0: MASTER.address}


def test_the_same_address_under_another_id_leaves_the_old_id() -> None:
    """A slave that was made master is not listed twice."""
    table = table_of(SLAVE)

    table.register(attrs.evolve(SLAVE, broker_id=0), topics(V2, T=RW), "s", 1.0)

    assert table.members("c1", "b1")["brokerAddrs"] == {0: SLAVE.address}


def test_the_same_address_under_another_name_leaves_the_old_name() -> None:
    """The end of its connection is that of the new name alone, so the old one would be routed to for ever."""
    table = table_of(MASTER)

    table.register(attrs.evolve(MASTER, name="renamed"), topics(T=RW), MASTER.address, 1.0)

    assert set(queues(table, "T")) == {"renamed"}
    table.connection_closed(MASTER.address)
    assert table.route("T") is None


def test_the_same_address_in_another_cluster_does_not_expire_with_the_old_one() -> None:
    """What it registered in the old cluster is not refreshed any more."""
    table = table_of(MASTER)
    moved = attrs.evolve(MASTER, cluster="c9")

    table.register(moved, topics(T=RW), MASTER.address, 100.0)

    assert table.expire(150.0) == []
    assert set(queues(table, "T")) == {"b1"}
    assert table.cluster_info()["clusterAddrTable"] == {"c9": ["b1"]}


def test_with_the_last_address_of_a_name_go_its_queues_and_empty_topics() -> None:
    """Topics stay as long as one broker serves them; clusters as long as they have a broker."""
    table = table_of(MASTER, SLAVE, OTHER, T=RW)
    table.register(OTHER, topics(V2, Only=RW, Two=RW), "o", 1.0)

    table.unregister("c1", "b1", MASTER.address)
    assert queues(table, "T") == {"b1": (4, 6), "b2": (4, 6)}
    table.unregister("c1", "b1", SLAVE.address)
    assert queues(table, "T") == {"b2": (4, 6)}
    table.unregister("c2", "b2", OTHER.address)

    assert table.route("T") is None
    assert not table.unlist(100)
    assert table.all_topics() == []
    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_unregistering_what_is_not_registered_changes_nothing() -> None:
    """Brokers say goodbye more than once, and strangers do too."""
    table = table_of(MASTER)

    table.unregister("c1", "b1", "10.9.9.9:10911")
    table.unregister("c9", "b9", MASTER.address)

    assert table.route("T") is not None


@pytest.mark.parametrize(("timeout", "dies_after"), [(120.0, 120.0), (10.0, 10.0)])
def test_a_silent_broker_expires_after_its_own_timeout(timeout: float, dies_after: float) -> None:
    """120 seconds unless the broker names its timeout; its connection is to be closed then."""
    table = RouteTable[str]()
    broker = attrs.evolve(MASTER, timeout_seconds=timeout)
    table.register(broker, topics(T=RW), "m", 100.0)

    assert table.expire(100.0 + dies_after) == []
    assert table.expire(100.0 + dies_after + 0.1) == [(broker, "m")]
    assert table.route("T") is None
    assert table.expire(1e9) == []


def test_a_sign_of_life_keeps_a_broker() -> None:
    """Heartbeats and questions for the data version count as much as registrations; strangers' do not."""
    table = table_of(MASTER)

    table.refresh("c1", MASTER.address, 100.0)
    table.refresh("c1", "10.9.9.9:10911", 100.0)

    assert table.expire(200.0) == []
    assert table.data_version("c1", MASTER.address) == V1
    assert table.data_version("c1", "10.9.9.9:10911") is None


def test_the_end_of_a_connection_takes_its_brokers_and_no_others() -> None:
    """A broker that has registered again over a new connection survives the end of the old one."""
    table = table_of(MASTER, OTHER, T=RW)
    table.register(OTHER, topics(V1, T=RW), "new connection", 1.0)

    assert table.connection_closed(MASTER.address) == [MASTER]
    assert table.connection_closed(OTHER.address) == []
    assert queues(table, "T") == {"b2": (4, 6)}


def test_write_permission_is_wiped_and_given_back_as_rocketmq_does() -> None:
    """Wiping keeps the other bits; giving back sets read and write and so drops the inherit bit."""
    table = table_of(MASTER, OTHER, T=RW)

    assert table.wipe_write_permission("b1") == 2
    assert (queues(table, "T"), queues(table, "TBW102")) == ({"b1": (4, 4), "b2": (4, 6)}, {"b1": (8, 5), "b2": (8, 7)})

    assert table.add_write_permission("b1") == 2
    assert queues(table, "TBW102") == {"b1": (8, 6), "b2": (8, 7)}
    assert table.wipe_write_permission("nobody") == 0


def test_a_topic_is_deleted_on_one_cluster_or_everywhere() -> None:
    """The other cluster keeps it unless none is named."""
    table = table_of(MASTER, OTHER, T=RW)

    table.delete_topic("T", "c1")
    assert queues(table, "T") == {"b2": (4, 6)}
    table.delete_topic("T")
    assert table.route("T") is None
    table.delete_topic("T")


def test_topic_lists_are_by_cluster_and_by_flag() -> None:
    """Unit topics carry bit 1, topics with unit subscriptions bit 2."""
    table = table_of(
        MASTER,
        Unit=attrs.evolve(RW, topic_sys_flag=1),
        Sub=attrs.evolve(RW, topic_sys_flag=2),
        Both=attrs.evolve(RW, topic_sys_flag=3),
    )
    table.register(OTHER, topics(Only=RW), "o", 0.0)

    assert table.all_topics() == ["Both", "Only", "Sub", "TBW102", "Unit"]
    assert table.flagged_topics(lambda flag: bool(flag & 1)) == ["Both", "Unit"]
    assert table.topics_of_cluster("c2") == ["Only", "TBW102"]
    assert table.topics_of_cluster("nowhere") == []


def test_system_topics_are_the_names_of_clusters_and_brokers() -> None:
    """The tool then asks the broker at the address for the rest."""
    assert RouteTable[str]().system_topics() == ([], None)
    assert table_of(MASTER, OTHER).system_topics() == (["b1", "b2", "c1", "c2"], MASTER.address)


def test_a_topic_registered_alone_is_kept_for_known_brokers() -> None:
    """A 5.x broker registers single topics; queues of brokers that nobody knows would lead nowhere."""
    table = table_of(MASTER)

    table.register_topic("Single", [("b1", RW), ("nobody", RW)])
    table.register_topic("Nothing", [("nobody", RW)])

    assert queues(table, "Single") == {"b1": (4, 6)}
    assert table.route("Nothing") is None


def test_members_of_a_name_are_those_of_its_cluster() -> None:
    """An unknown name has none."""
    table = table_of(MASTER, SLAVE)

    assert table.members("c1", "b1")["brokerAddrs"] == {0: MASTER.address, 1: SLAVE.address}
    assert table.members("c9", "b1")["brokerAddrs"] == {}
    assert table.members("c1", "b9") == {"brokerAddrs": {}, "brokerName": "b9", "cluster": "c1"}


def test_without_its_master_a_group_with_acting_master_is_read_only() -> None:
    """The lowest slave is shown as id 0 to who may read from it, and nobody may write."""
    master, slave = (attrs.evolve(broker, enable_acting_master=True) for broker in (MASTER, SLAVE))
    table = table_of(master, slave, T=RW)

    table.connection_closed(master.address)

    assert queues(table, "T") == {"b1": (4, 4)}
    plain, acting = table.route("T"), table.route("T", acting_masters=True)
    assert plain is not None
    assert acting is not None
    assert plain["brokerDatas"][0]["brokerAddrs"] == {1: slave.address}
    assert acting["brokerDatas"][0]["brokerAddrs"] == {0: slave.address}

    table.register(slave, topics(V2, T=RW), "s", 1.0)
    assert queues(table, "T") == {"b1": (4, 4)}
    table.register(master, topics(V1, T=RW), "m", 2.0)
    assert queues(table, "T") == {"b1": (4, 6)}


def test_a_change_of_the_lowest_id_is_for_the_others_of_the_name() -> None:
    """Those that were there are notified of a lower one that comes, and all that are left of the loss of the lowest."""
    master, slave = (attrs.evolve(broker, enable_acting_master=True) for broker in (MASTER, SLAVE))
    third = attrs.evolve(slave, broker_id=2, address="10.0.0.4:10911")
    table = table_of(slave, third)
    assert table.min_id_changes == []

    table.register(master, topics(V1, T=RW), "again", 0.0)
    table.register(master, topics(V1, T=RW), "again", 1.0)
    table.unregister("c1", "b1", third.address)
    table.unregister("c1", "b1", master.address)
    table.unregister("c1", "b1", slave.address)

    assert table.min_id_changes == [
        MinIdChange("b1", 0, master.address, (slave.address, third.address), ha_address=master.ha_address),
        MinIdChange("b1", 1, slave.address, (slave.address,), offline_address=master.address),
    ]


def test_brokers_without_acting_master_are_notified_of_no_change() -> None:
    """Only 5.x brokers know the notice, and of those the ones that act on it."""
    table = table_of(SLAVE, MASTER)

    table.unregister("c1", "b1", MASTER.address)

    assert table.min_id_changes == []


def test_topics_of_a_broker_that_left_go_in_slices_and_have_no_routes_meanwhile() -> None:
    """A hundred thousand topics in one turn of the event loop would take as long as all other requests may wait."""
    table = table_of(MASTER, **{f"T{n}": RW for n in range(9)})

    table.unregister("c1", "b1", MASTER.address)

    assert table.route("T0") is None
    assert table.topics_of_cluster("c1") == []
    table.delete_topic("T0")
    assert table.unlist(4)
    assert len(table.all_topics()) == 6
    assert not table.unlist(6)
    assert table.all_topics() == []


def test_a_broker_that_comes_back_has_only_what_it_registers_then() -> None:
    """Its topics of before may still be listed, and must not be taken for those of now."""
    table = table_of(MASTER, Old=RW)
    table.unregister("c1", "b1", MASTER.address)

    table.register(MASTER, topics(V2, New=RW), "m", 1.0)

    assert not table.unlist(100)
    assert table.all_topics() == ["New", "TBW102"]


def test_brokers_expire_in_slices() -> None:
    """Thousands of one name that fall silent together would stop the event loop for a second."""
    table = RouteTable[str]()
    for number in range(100):
        table.register(Broker("c", "b", number, f"10.0.0.{number}:1"), topics(T=RW), f"{number}", 0.0)

    expired = len(table.expire(1000.0)), len(table.expire(1000.0)), len(table.expire(1000.0))

    assert expired == (module.EXPIRED_MAX, 100 - module.EXPIRED_MAX, 0)


def test_an_address_leaves_only_the_name_under_which_it_is_registered() -> None:
    """A renamed broker's old process may say its farewell late; the name must not stay without an address that can expire."""
    table = table_of(MASTER)

    table.unregister("c1", "b2", MASTER.address)
    table.unregister("c2", "b1", MASTER.address)

    assert table.broker_count == 1
    assert [broker for broker, _ in table.expire(1000.0)] == [MASTER]
    assert table.route("T") is None


def test_a_master_replaced_from_another_cluster_does_not_stay_alive() -> None:
    """Its entry would expire later, and close a connection that serves."""
    table = table_of(MASTER)

    table.register(attrs.evolve(OTHER, name="b1"), topics(), "o", 1.0)

    assert table.broker_count == 1


def test_acting_masters_stand_in_routes_of_queues_that_none_may_write_alone() -> None:
    """Brokers of RocketMQ 5 read the members of their name from a route, and producers must not be sent to a slave."""
    acting = attrs.evolve(SLAVE, enable_acting_master=True)
    member_topic = f"{module.MEMBER_TOPIC_PREFIX}b1"
    table = table_of(attrs.evolve(MASTER, enable_acting_master=True), acting, **{"T": RW, member_topic: RW})
    table.unregister("c1", "b1", MASTER.address)

    def addresses(topic: str) -> dict[int, str]:
        route = table.route(topic, acting_masters=True)
        assert route is not None
        addresses: dict[int, str] = route["brokerDatas"][0]["brokerAddrs"]
        return addresses

    assert addresses("T") == {0: SLAVE.address}
    assert addresses(member_topic) == {1: SLAVE.address}
    table.add_write_permission("b1")
    assert addresses("T") == {1: SLAVE.address}


def test_two_hundred_brokers_that_leave_leave_nothing_behind() -> None:
    """Topics that others still serve stay until the last of them has left."""
    table = RouteTable[str]()
    brokers = [Broker("c", f"b{n}", 0, f"10.0.0.{n}:1") for n in range(200)]
    for broker in brokers:
        table.register(broker, topics(V1, **{f"T{n}": RW for n in range(50)}), broker.address, 0.0)
    for broker in brokers[1:]:
        table.connection_closed(broker.address)

    while table.unlist(1000):
        pass
    assert len(table.all_topics()) == 51
    assert table.route("T0") is not None
    table.connection_closed(brokers[0].address)
    assert not table.unlist(1000)
    assert table.all_topics() == []
    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


@pytest.mark.parametrize(
    ("bound", "value"),
    [("TOPICS_KNOWN_MAX", 5), ("TOPICS_BYTES_MAX", len('"TBW102","T","T0","T1","T2",')), ("QUEUE_ENTRIES_MAX", 7)],
)
def test_topics_beyond_a_bound_are_left_out_and_their_broker_stays(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """Its other topics keep their routes, and it is asked to register again until all of them fit."""
    table = table_of(MASTER, T=RW)
    monkeypatch.setattr(module, bound, value)
    many = {f"T{number}": RW for number in range(5)}

    registered = table.register(OTHER, topics(V1, T=RW, **many), "o", 0.0)

    assert registered.left_out == 2
    assert table.all_topics() == ["T", "T0", "T1", "T2", "TBW102"]
    assert table.members("c2", "b2")["brokerAddrs"] == {0: OTHER.address}
    assert table.lacks_topics("c2", OTHER.address)
    with pytest.raises(RequestRefused, match="the topic does not fit on b2"):
        table.register_topic("T3", [("b2", RW)])
    table.register(OTHER, topics(V2, T0=TopicConfig(1, 1, 6)), "o", 1.0)
    assert queues(table, "T0") == {"b2": (1, 6)}
    table.delete_topic("T0")
    table.delete_topic("T1")
    assert table.register(OTHER, topics(V2, T=RW, T2=RW, T3=RW, T4=RW), "o", 2.0).left_out == 0
    assert not table.lacks_topics("c2", OTHER.address)
    table.connection_closed("o")
    table.connection_closed(MASTER.address)
    assert table.register(OTHER, topics(V1, T=RW, T0=RW, T1=RW, T2=RW), "o", 3.0).left_out == 0


def test_a_broker_registers_again_what_was_deleted_while_it_had_it() -> None:
    """A producer has created the topic again between its deletion at the broker and here; one registered topic is not all."""
    table = table_of(MASTER, SLAVE, OTHER, T=RW)

    table.delete_topic("T", "c1")

    assert table.lacks_topics("c1", MASTER.address)
    assert not table.lacks_topics("c2", OTHER.address)
    table.register(MASTER, RegisteredTopics(V2, {"New": RW}), MASTER.address, 1.0)
    assert table.lacks_topics("c1", MASTER.address)
    table.register(MASTER, topics(V2, T=RW, New=RW), MASTER.address, 2.0)
    assert not table.lacks_topics("c1", MASTER.address)
    assert queues(table, "T") == {"b1": (4, 6), "b2": (4, 6)}


def test_one_connection_registers_so_many_addresses_and_no_more() -> None:
    """Those that it has registered may register again."""
    table = RouteTable[str]()
    brokers = [Broker("c", f"b{n}", 0, f"10.0.0.{n}:1") for n in range(BROKERS_OF_CONNECTION_MAX + 1)]
    for broker in brokers[:-1]:
        table.register(broker, topics(V1, T=RW), "connection", 0.0)

    with pytest.raises(RequestRefused, match="over this connection already"):
        table.register(brokers[-1], topics(V1, T=RW), "connection", 0.0)

    table.register(brokers[0], topics(V1, T=RW), "connection", 1.0)
    table.register(brokers[-1], topics(V1, T=RW), "another", 1.0)
