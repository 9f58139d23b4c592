"""Headers and bodies of the controller's requests, against those that the classes of rocketmq-remoting 5.5.0 write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.controller import protocol
from ledgermq.ha.controller.protocol import (
    HEARTBEAT_TIMEOUT_MILLIS_MAX,
    LOWEST_PRIORITY,
    NAMES_MAX,
    REPLICAS_MAX,
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    Body,
    BrokerHeartbeat,
    BrokerMemberGroup,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ElectMasterBody,
    ElectMasterRequest,
    EpochEntry,
    EpochEntryCache,
    GetMetadataResponse,
    GetReplicaInfoRequest,
    Header,
    Mastership,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    read_broker_names,
)
from ledgermq.message.numbers import INT_MAX, LONG_MAX
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused

A, B = "127.0.0.1:10911", "127.0.0.1:10921"
C1B1 = {"clusterName": "c1", "brokerName": "b1"}
MASTER = {"masterAddress": A, "masterBrokerId": "1", "masterEpoch": "3", "syncStateSetEpoch": "5"}
MASTERSHIP: dict[str, Any] = {
    "master_broker_id": 1,
    "master_address": A,
    "master_epoch": 3,
    "sync_state_set_epoch": 5,
}

HEADERS: list[tuple[dict[str, str], Header]] = [
    (
        {"brokerName": "b1", "masterBrokerId": "1", "masterEpoch": "3"},
        AlterSyncStateSetRequest(broker_name="b1", master_broker_id=1, master_epoch=3),
    ),
    ({"newSyncStateSetEpoch": "5"}, AlterSyncStateSetResponse(new_sync_state_set_epoch=5)),
    (
        C1B1 | {"brokerId": "2", "designateElect": "true"},
        ElectMasterRequest(cluster_name="c1", broker_name="b1", broker_id=2, designate_elect=True),
    ),
    (
        {"brokerId": "-1", "brokerName": "b1", "clusterName": "", "designateElect": "false"},
        ElectMasterRequest(broker_name="b1"),
    ),
    (MASTER, Mastership(**MASTERSHIP)),
    ({}, Mastership()),
    (
        C1B1 | {"brokerId": "1", "brokerAddress": A, "cleanStop": "false"},
        RegisterBrokerRequest(cluster_name="c1", broker_name="b1", broker_id=1, broker_address=A),
    ),
    (
        C1B1 | {"brokerId": "1", "brokerAddress": A, "maxOffset": "100", "epoch": "2", "cleanStop": "true"},
        RegisterBrokerRequest(
            cluster_name="c1", broker_name="b1", broker_id=1, broker_address=A, max_offset=100, epoch=2, clean_stop=True
        ),
    ),
    (C1B1 | MASTER, RegisterBrokerResponse(cluster_name="c1", broker_name="b1", **MASTERSHIP)),
    ({"brokerName": "b1"}, GetReplicaInfoRequest(broker_name="b1")),
    (
        {
            "controllerLeaderAddress": "127.0.0.1:9877",
            "controllerLeaderId": "n0",
            "group": "g",
            "isLeader": "true",
            "peers": "n0:127.0.0.1:9877;n1:127.0.0.1:9878;",
        },
        GetMetadataResponse(
            group="g",
            controller_leader_id="n0",
            controller_leader_address="127.0.0.1:9877",
            is_leader=True,
            peers="n0:127.0.0.1:9877;n1:127.0.0.1:9878;",
        ),
    ),
    (
        C1B1 | {"brokerControllerIdsToClean": "1;2", "isCleanLivingBroker": "true"},
        CleanBrokerDataRequest(
            cluster_name="c1", broker_name="b1", broker_controller_ids_to_clean="1;2", is_clean_living_broker=True
        ),
    ),
    ({"brokerName": "b1", "isCleanLivingBroker": "false"}, CleanBrokerDataRequest(broker_name="b1")),
    (C1B1, NextBrokerIdRequest(cluster_name="c1", broker_name="b1")),
    (C1B1 | {"nextBrokerId": "3"}, NextBrokerIdResponse(cluster_name="c1", broker_name="b1", next_broker_id=3)),
    (
        C1B1 | {"appliedBrokerId": "3", "registerCheckCode": "127.0.0.1:10911;1700000000000"},
        ApplyBrokerIdRequest(
            cluster_name="c1", broker_name="b1", applied_broker_id=3, register_check_code="127.0.0.1:10911;1700000000000"
        ),
    ),
    (C1B1, ApplyBrokerIdResponse(cluster_name="c1", broker_name="b1")),
    (
        C1B1
        | {
            "brokerAddr": A,
            "brokerId": "1",
            "confirmOffset": "90",
            "electionPriority": "2147483647",
            "epoch": "3",
            "heartbeatTimeoutMills": "10000",
            "maxOffset": "100",
        },
        BrokerHeartbeat(
            cluster_name="c1",
            broker_name="b1",
            broker_addr=A,
            broker_id=1,
            epoch=3,
            max_offset=100,
            confirm_offset=90,
            heartbeat_timeout_mills=10_000,
            election_priority=LOWEST_PRIORITY,
        ),
    ),
]

BODIES: list[tuple[bytes, Body]] = [
    (b'{"syncStateSet":[1,2],"syncStateSetEpoch":5}', SyncStateSet(sync_state_set=frozenset({2, 1}), sync_state_set_epoch=5)),
    (b'{"syncStateSet":[1]}', ElectMasterBody(sync_state_set=frozenset({1}))),
    (
        (
            b'{"brokerMemberGroup":{"brokerAddrs":{1:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"b1","cluster":"c1"},'
            b'"syncStateSet":[1]}'
        ),
        ElectMasterBody(
            sync_state_set=frozenset({1}),
            broker_member_group=BrokerMemberGroup(cluster="c1", broker_name="b1", broker_addrs={1: A, 2: B}),
        ),
    ),
    (
        (
            b'{"replicasInfoTable":{"b1":{"inSyncReplicas":[{"alive":true,"brokerAddress":"127.0.0.1:10911","brokerId":1,'
            b'"brokerName":"b1"}],"masterAddress":"127.0.0.1:10911","masterBrokerId":1,"masterEpoch":3,"notInSyncReplicas":['
            b'{"alive":false,"brokerAddress":"127.0.0.1:10921","brokerId":2,"brokerName":"b1"}],"syncStateSetEpoch":5}}}'
        ),
        BrokerReplicasInfo(
            replicas_info_table={
                "b1": ReplicasInfo(
                    master_broker_id=1,
                    master_address=A,
                    master_epoch=3,
                    sync_state_set_epoch=5,
                    in_sync_replicas=[ReplicaIdentity(broker_name="b1", broker_id=1, broker_address=A, alive=True)],
                    not_in_sync_replicas=[ReplicaIdentity(broker_name="b1", broker_id=2, broker_address=B)],
                )
            }
        ),
    ),
    (
        (
            b'{"brokerId":1,"brokerName":"b1","clusterName":"c1","epochList":[{"endOffset":9223372036854775807,"epoch":1,'
            b'"startOffset":0},{"endOffset":9223372036854775807,"epoch":2,"startOffset":100}],"maxOffset":200}'
        ),
        EpochEntryCache(
            cluster_name="c1",
            broker_name="b1",
            broker_id=1,
            epoch_list=[EpochEntry(epoch=1, start_offset=0), EpochEntry(epoch=2, start_offset=100)],
            max_offset=200,
        ),
    ),
]


def request(ext: dict[str, str]) -> RemotingCommand:
    return RemotingCommand(1000, ext)


@pytest.mark.parametrize(("ext", "header"), HEADERS, ids=lambda value: type(value).__name__)
def test_a_header_has_the_fields_that_java_writes(ext: dict[str, str], header: Header) -> None:
    assert header.ext() == ext
    assert type(header).of(request(ext)) == header


@pytest.mark.parametrize(("written", "body"), BODIES, ids=lambda value: type(value).__name__)
def test_a_body_has_the_bytes_that_java_writes(written: bytes, body: Body) -> None:
    """But for integer keys, which are quoted: mqadmin of 5.5.0 does not read Java's bare ones."""
    assert body.body() == written.replace(b'{1:"', b'{"1":"').replace(b',2:"', b',"2":"')
    assert type(body).of(written) == type(body).of(body.body()) == body


def test_fields_that_only_some_versions_send_are_ignored() -> None:
    """`invokeTime` is sent by Java and read by its JRaft controller alone."""
    assert GetReplicaInfoRequest.of(request({"brokerName": "b1", "invokeTime": "1795724356181"})).broker_name == "b1"


@pytest.mark.parametrize(
    ("ext", "found"),
    [
        ({"brokerName": "b1", "masterBrokerId": "1"}, "masterEpoch"),
        ({"brokerName": "", "masterBrokerId": "1", "masterEpoch": "1"}, "brokerName"),
        ({"brokerName": "b" * 256, "masterBrokerId": "1", "masterEpoch": "1"}, "brokerName"),
        ({"brokerName": "b\n1", "masterBrokerId": "1", "masterEpoch": "1"}, "brokerName"),
        ({"brokerName": "b1\n", "masterBrokerId": "1", "masterEpoch": "1"}, "brokerName"),
        ({"brokerName": "b1", "masterBrokerId": "-1", "masterEpoch": "1"}, "masterBrokerId"),
        ({"brokerName": "b1", "masterBrokerId": str(LONG_MAX + 1), "masterEpoch": "1"}, "masterBrokerId"),
        ({"brokerName": "b1", "masterBrokerId": "1", "masterEpoch": str(INT_MAX + 1)}, "masterEpoch"),
        ({"brokerName": "b1", "masterBrokerId": "1", "masterEpoch": "1_0"}, "masterEpoch"),
        ({"brokerName": "b1", "masterBrokerId": "1", "masterEpoch": "9" * 100_000}, "masterEpoch"),
    ],
)
def test_a_field_that_is_absent_or_beyond_its_bound_is_refused_by_name(ext: dict[str, str], found: str) -> None:
    with pytest.raises(RequestRefused, match=f"AlterSyncStateSetRequest: .*{found}.*nothing was done") as refused:
        AlterSyncStateSetRequest.of(request(ext))

    assert refused.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert len(refused.value.remark) < 300


NO_ADDRESSES = ["", "b1", "host:", "ho st:1", ":1", "host:1\n", "h" * 300 + ":1", "host:123456", "h\N{SNOWMAN}:1", 'h"\\:1']


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(RequestRefused, match="brokerAddress"):
        RegisterBrokerRequest.of(request(C1B1 | {"brokerId": "1", "brokerAddress": address}))


@pytest.mark.parametrize("code", [*(f"{address};1" for address in NO_ADDRESSES), "host:1", "host:1;\n", "host:1;" + "1" * 600])
def test_a_check_code_begins_with_an_address(code: str) -> None:
    """It is the replica's until another one is registered. No answer that has another text in its place can be read."""
    with pytest.raises(RequestRefused, match="registerCheckCode"):
        ApplyBrokerIdRequest.of(request(C1B1 | {"appliedBrokerId": "1", "registerCheckCode": code}))


@pytest.mark.parametrize("millis", [0, HEARTBEAT_TIMEOUT_MILLIS_MAX + 1])
def test_a_heartbeat_asks_for_a_bounded_time(millis: int) -> None:
    with pytest.raises(RequestRefused, match="heartbeatTimeoutMills"):
        BrokerHeartbeat.of(request(C1B1 | {"brokerAddr": A, "heartbeatTimeoutMills": str(millis)}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{",
        b'{"syncStateSet":[1]}',
        b'{"syncStateSet":[-1],"syncStateSetEpoch":1}',
        b'{"syncStateSet":%a,"syncStateSetEpoch":1}' % [*range(REPLICAS_MAX + 1)],
        b'{"syncStateSet":' + b"[" * 10_000,
    ],
)
def test_a_body_that_is_no_set_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused, match=r"SyncStateSet: .*nothing was done"):
        SyncStateSet.of(body)


def test_a_list_of_broker_names_is_bounded() -> None:
    assert read_broker_names(b'["b1","b2"]') == ["b1", "b2"]
    for body in (b"", b"{}", b'[""]', b"[1]", b"[%b]" % b",".join([b'"b"'] * (NAMES_MAX + 1))):
        with pytest.raises(RequestRefused, match="broker names"):
            read_broker_names(body)


@given(st.dictionaries(st.sampled_from(["brokerName", "clusterName", "brokerId", "brokerAddress", "epoch"]), st.text()))
def test_any_fields_are_read_or_refused(ext: dict[str, str]) -> None:
    try:
        header = RegisterBrokerRequest.of(request(ext))
    except RequestRefused:
        return
    assert RegisterBrokerRequest.of(request(header.ext())) == header


@given(st.binary())
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for kind in (SyncStateSet, ElectMasterBody, BrokerReplicasInfo, EpochEntryCache):
        try:
            read = kind.of(body)
        except RequestRefused:
            continue
        assert kind.of(read.body()) == read


def test_every_header_of_the_module_is_compared_with_java_s() -> None:
    compared = {type(header) for _, header in HEADERS} | {type(body) for _, body in BODIES}
    parts = {BrokerMemberGroup, ReplicaIdentity, ReplicasInfo, EpochEntry, Header, Body}
    kinds = {kind for kind in vars(protocol).values() if isinstance(kind, type) and issubclass(kind, Header | Body)}

    assert kinds == compared | parts
