"""One frozen configuration of a broker, read from RocketMQ's `broker.conf` (its BrokerConfig, MessageStoreConfig and others).

Field names are RocketMQ's keys in snake case (`listenPort` is `listen_port`); `KEYS` maps both ways. Unknown keys are kept as
text, so that a configuration of RocketMQ can be used unchanged and is displayed completely. Files are read elsewhere.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..ha.classic.table_proofs import node_credentials
from ..message.numbers import LONG_MAX, long_of
from ..message.units import MASTER_ID
from ..remoting.errors import BadProperties, BadTlsSetting
from ..remoting.java_properties import read_properties, refuse_misspelt, setting_text, write_properties
from ..remoting.signature import Credentials
from ..remoting.tls import TLS_KEYS, TlsSettings
from ..store.config import CONSUMED, DELAY_LEVELS, StoreConfig, parse_delay_levels
from ..world.address import is_numeric_host
from ..world.events import get_logger
from ..world.network import Address
from .access.users import BadUser, User, credentials_in
from .errors import BadConfig

log = get_logger(__name__)

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"
ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
FILES, MEMORY = "default", "MEMORY"
SHOWN_CHARACTERS = 60
"""How many characters of an unreadable text an error quotes."""
NODE_ID = re.compile(r"[A-Za-z][0-9]+")
"""Matches the id of a node of a DLedger group (dLegerSelfId)."""
_HOUR = re.compile("[01]?[0-9]|2[0-3]")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Rule = Callable[[Any], str | None]
"""Returns None for an allowed value, and otherwise a description of the allowed values."""


def _between(low: int, high: int) -> Rule:
    return lambda value: None if low <= value <= high else f"a number from {low} to {high}"


def _one_of(*choices: str) -> Rule:
    return lambda value: None if value in choices else "one of " + ", ".join(choices)


def _named(value: str) -> str | None:
    return None if _NAME.fullmatch(value) else "1 to 127 characters of A-Z a-z 0-9 % | - _"


def _host(value: str) -> str | None:
    # Resolvers take a text of digits and dots for an IPv4 address, so no machine has 999.1.1.1 as its name.
    wrong = re.search(r"[\s;,/]|^[^:]*:[0-9]*$", value) or (re.fullmatch("[0-9.]+", value) and not is_numeric_host(value))
    return "an address or a name of this machine, without a port" if wrong else None


def _directory(value: str) -> str | None:
    return None if value.strip() else "a directory"


def _addressed(value: str) -> str | None:
    try:
        parse_addresses(value)
    except ValueError:
        return "HOST:PORT, several separated by ;"
    return None


def _levelled(value: str) -> str | None:
    try:
        return None if parse_delay_levels(value) else "at least one level"
    except ValueError:
        return "numbers followed by s, m, h or d, separated by spaces"


def _houred(value: str) -> str | None:
    hours = value.split(";")
    return None if all(_HOUR.fullmatch(hour) for hour in hours) else "hours 00 to 23, several separated by ;"


def _one_directory(value: str | None) -> str | None:
    if value is None or not re.search(r",|:/", value):  # RocketMQ's separator, and one that is often set instead
        return None
    return "one directory: RocketMQ's list of several, whose files this broker would not find, is not read"


def _store_type(value: str) -> str | None:
    if value in (FILES, MEMORY):
        return None
    return f"{FILES} or {MEMORY}: this broker keeps consume queues in files, and would not find those in RocksDB"


_POSITIVE = _between(1, LONG_MAX)
_NOT_NEGATIVE = _between(0, LONG_MAX)
_PORT = _between(0, 65535)


def _key(default: Any, rule: Rule | None = None, *, name: str | None = None) -> Any:
    return attrs.field(default=default, metadata={"rule": rule, "name": name})


def _secret(name: str, secret: str) -> Any:
    """A setting with the name and the secret of a user, which no answer, log or error shows."""

    def rule(value: str) -> str | None:
        try:
            credentials_in(value, name, secret)
        except BadUser as error:
            return str(error)
        return None

    return attrs.field(default="", repr=False, metadata={"rule": rule, "name": None, "secret": True})


def _home_store() -> str:
    return os.path.expanduser("~/store")


def _lower_case(value: str) -> str:
    return value.lower()


def _no_others() -> dict[str, str]:
    return {}


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """All settings of a broker. Sizes are in bytes and times in milliseconds, unless the name says otherwise."""

    # identity
    broker_cluster_name: str = _key("DefaultCluster", _named)
    broker_name: str = _key("broker-a", _named)
    broker_id: int = _key(0, _between(-1, LONG_MAX))
    broker_role: str = _key(ASYNC_MASTER, _one_of(ASYNC_MASTER, SYNC_MASTER, SLAVE))
    broker_permission: int = _key(6, _between(0, 7))

    # addresses
    listen_port: int = _key(10911, _PORT)
    bind_address: str = ""
    """The address of this machine to listen on; empty for all."""
    broker_ip1: str = _key("", _host, name="brokerIP1")
    """The address that clients are given; empty for the machine's own."""
    broker_ip2: str = _key("", _host, name="brokerIP2")
    """The address that slaves are given; empty for `broker_ip1`."""
    namesrv_addr: str = _key("", _addressed)
    register_name_server_period: int = _key(30_000, _POSITIVE)
    register_broker_timeout_mills: int = _key(24_000, _POSITIVE)
    force_register: bool = True

    # topics, groups, messages
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = _key(8, _between(1, 65535))
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    max_message_size: int = _key(4 * 1024 * 1024, _between(10, 15 * 1024 * 1024))
    message_delay_level: str = _key(DELAY_LEVELS, _levelled)
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    notify_consumer_ids_changed_enable: bool = True

    # pulling
    long_polling_enable: bool = True
    short_polling_time_mills: int = _key(1000, _POSITIVE)
    slave_read_enable: bool = False
    max_transfer_bytes_on_message_in_memory: int = _key(262_144, _between(100, 15 * 1024 * 1024))
    max_transfer_count_on_message_in_memory: int = _key(32, _POSITIVE)
    max_transfer_bytes_on_message_in_disk: int = _key(65_536, _between(100, 15 * 1024 * 1024))
    max_transfer_count_on_message_in_disk: int = _key(8, _POSITIVE)
    access_message_in_memory_max_ratio: int = _key(40, _between(1, 100))
    max_filter_message_size: int = _key(16_000, _POSITIVE)
    default_query_max_num: int = _key(32, _POSITIVE)
    offset_check_in_slave: bool = False
    use_server_side_reset_offset: bool = False
    """Whether a reset of a group's offsets is sent in the answers to its next pulls instead of in requests to its members. In
RocketMQ 5.x this is the default."""

    # store
    store_path_root_dir: str = attrs.field(factory=_home_store, metadata={"rule": _directory, "name": None})
    store_path_commit_log: str | None = _key(None, _one_directory)
    mapped_file_size_commit_log: int = _key(1 << 30, _between(4096, 1 << 40))
    mapped_file_size_consume_queue: int = _key(6_000_000, _between(20, 1 << 40))
    max_hash_slot_num: int = _key(5_000_000, _POSITIVE)
    max_index_num: int = _key(20_000_000, _POSITIVE)
    message_index_enable: bool = True
    flush_disk_type: str = _key(ASYNC_FLUSH, _one_of(ASYNC_FLUSH, SYNC_FLUSH))
    flush_interval_commit_log: int = _key(500, _POSITIVE)
    flush_interval_consume_queue: int = _key(1000, _POSITIVE)
    sync_flush_timeout: int = _key(5000, _POSITIVE)
    check_crc_on_recover: bool = _key(True, name="checkCRCOnRecover")
    file_reserved_time: int = _key(72, _NOT_NEGATIVE)
    """How many hours segments are kept."""
    delete_when: str = _key("04", _houred)
    disk_max_used_space_ratio: int = _key(75, _between(10, 95))
    """If more of the disk is used, in per cent, expired segments are deleted at any hour."""
    clean_file_forcibly_enable: str = attrs.field(
        default=CONSUMED,
        converter=_lower_case,
        metadata={"rule": _one_of("true", "false", CONSUMED), "name": None},
    )
    """Which segments a nearly full disk takes before they have expired: with `true`, as in RocketMQ, the oldest ones; with
`false` none; by default those that all groups have consumed."""
    scrub_bytes_per_second: int = _key(0, _between(0, 1 << 40))
    """Our own key: how much of the log's full files is read back each second, at most, to find damaged records; 0 for none."""
    clean_resource_interval: int = _key(10_000, _POSITIVE)
    delete_file_batch_max: int = _key(10, _POSITIVE)
    flush_delay_offset_interval: int = _key(10_000, _POSITIVE)
    flush_consumer_offset_interval: int = _key(5_000, _POSITIVE)

    # master and slave
    ha_listen_port: int = _key(0, _PORT)
    """0 means the listen port + 1."""
    ha_master_address: str = _key("", _addressed)
    ha_send_heartbeat_interval: int = _key(5000, _POSITIVE)
    ha_housekeeping_interval: int = _key(20_000, _POSITIVE)
    ha_transfer_batch_size: int = _key(32_768, _POSITIVE)
    ha_max_gap_not_in_sync: int = _key(256 * 1024 * 1024, _POSITIVE)
    slave_timeout: int = _key(3000, _POSITIVE)
    in_sync_replicas: int = _key(1, _POSITIVE)
    min_in_sync_replicas: int = _key(1, _POSITIVE)
    sync_from: str = _key("last", _one_of("last", "first"))
    """Our own key: the segment of the master with which an empty slave begins; RocketMQ begins with the `last` one."""
    ha_protocol: str = _key("ledgermq", _one_of("ledgermq", "rocketmq"))
    """Our own key: `ledgermq` authenticates and compares epochs first, `rocketmq` is RocketMQ's protocol of the mode."""
    ha_accept_loss: bool = False
    """Whether a slave drops acknowledged messages that its master has lost; otherwise it refuses the master."""
    ha_secret: str = attrs.field(default="", repr=False, metadata={"secret": True})
    """Our own key: the secret that all nodes of a group share."""
    allow_empty_ha_secret: bool = False
    """Our own key: whether a node of a DLedger group that listens beyond this machine may start without a secret."""
    ha_secret_file: str = ""
    """Our own key: the file that has the secret, instead of `haSecret`."""

    # a controller that elects the master
    enable_controller_mode: bool = False
    """Whether a controller elects the master of this broker's name, and says which replicas are in sync."""
    controller_addr: str = _key("", _addressed)
    """All controllers, separated by `;`."""
    all_ack_in_sync_state_set: bool = True
    """Whether a message is acknowledged when all replicas in sync have it; otherwise when `inSyncReplicas` of them do. In
RocketMQ this is off, and a message that was acknowledged can be lost with the master."""
    sync_from_last_file: bool = False
    """Whether an empty replica begins with the last segment of its master instead of the first."""
    async_learner: bool = False
    """Whether this replica only copies the log: it is never in sync, no put waits for it, and it is not elected once
the name has had a master."""
    ha_max_time_slave_not_catchup: int = _key(2000, _POSITIVE)
    """A replica that is behind for so long is no longer in sync; RocketMQ waits for 15,000 ms."""
    broker_heartbeat_interval: int = _key(200, _POSITIVE)
    """How often a broker tells the controller that it lives; RocketMQ's every 1,000 ms."""
    controller_heart_beat_timeout_mills: int = _key(600, _between(1, 600_000))
    """A master that the controller has not heard of for so long is replaced; RocketMQ waits for 10,000 ms."""
    sync_broker_metadata_period: int = _key(5000, _POSITIVE)
    """How often a broker asks who is master, besides the controller's notices."""
    broker_election_priority: int = _key((1 << 31) - 1, _between(-(1 << 31), (1 << 31) - 1))
    """Among replicas with equal logs the one with the lowest number is elected."""

    # users and rights
    acl_enable: bool = False
    """Whether only requests are carried out that an account of ACL 1.0 has signed and may send."""
    rocketmq_home: str = ""
    """The directory whose `conf` has the files of accounts; empty for the directory of the store."""
    authentication_enabled: bool = False
    """Whether only requests are carried out that a user has signed."""
    authorization_enabled: bool = False
    """Whether these users may do only what their rights say."""
    init_authentication_user: str = _secret("username", "password")
    """A super user that always exists, as a JSON object with `username` and `password`."""
    init_authentication_user_file: str = ""
    """Our own key: the file that has it, instead of `initAuthenticationUser`."""
    inner_client_authentication_credentials: str = _secret("accessKey", "secretKey")
    """With what a slave signs its requests to the master, as a JSON object with `accessKey` and `secretKey`; the master takes
them for those of a super user. Nodes that share an `haSecret` need none."""
    inner_client_authentication_credentials_file: str = ""
    """Our own key: the file that has them, instead of `innerClientAuthenticationCredentials`."""

    # DLedger
    enable_dleger_commit_log: bool = _key(False, name="enableDLegerCommitLog")
    dleger_group: str = _key("", name="dLegerGroup")
    """The name of the group; empty means the broker's name."""
    dleger_peers: str = _key("", name="dLegerPeers")
    dleger_self_id: str = _key("", name="dLegerSelfId")
    preferred_leader_id: str = ""
    """Nodes that should lead if they can, separated by `;`."""
    raft_dialect: str = _key("native", _one_of("native", "java"))
    """Our own key: `native` for groups of our own nodes, `java` for groups that include Apache nodes."""
    store_type: str = _key(FILES, _store_type)
    """Where the store is: `default` for files, `MEMORY` (DLedger's key) for a node whose store ends with its process."""
    raft_flush: str = _key("sync", _one_of("sync", "async"))
    """Our own key: whether a node acknowledges an entry when it is on the medium (`sync`), or when it is written (`async`)."""
    store_path_dledger_commit_log: str | None = _key(None, _one_directory, name="storePathDLedgerCommitLog")

    # monitoring
    metrics_exporter_type: str = _key("DISABLE", _one_of("DISABLE", "PROM"))
    """`PROM` serves metrics for Prometheus and the state for probes over HTTP."""
    metrics_prom_exporter_host: str = _key("127.0.0.1", _host)
    """The address to serve them on, empty for all. Nobody who reaches it has to prove anything."""
    metrics_prom_exporter_port: int = _key(5557, _PORT)

    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """The settings under keys that begin with `tls.`."""
    others: Mapping[str, str] = attrs.field(factory=_no_others)
    """The entries with unknown keys, unchanged."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            rule: Rule | None = field.metadata.get("rule")
            value = getattr(self, field.name)
            if rule is not None and (allowed := rule(value)) is not None:
                raise BadConfig(key_of(field), "…" if field.metadata.get("secret") else str(value), allowed)
        if self.acl_enable and self.authentication_enabled:
            raise BadConfig("aclEnable", "true", "false with authenticationEnabled: one of the two decides")
        if self.authorization_enabled and not self.authentication_enabled:
            raise BadConfig("authorizationEnabled", "true", "false without authenticationEnabled: anybody could take any name")
        if self.store_type == MEMORY and not self.enable_dleger_commit_log:
            raise BadConfig(
                "storeType", MEMORY, f"{FILES} without enableDLegerCommitLog: no other mode fills a lost store again"
            )
        if self.enable_controller_mode:
            self._check_controller()
            return
        if self.controller_addr:
            raise BadConfig(
                "controllerAddr",
                self.controller_addr,
                "empty without enableControllerMode=true: this broker would be a master beside the one that is elected",
            )
        if self.enable_dleger_commit_log:
            self._check_dledger()
        if self.broker_role == SLAVE and self.broker_id <= MASTER_ID:
            raise BadConfig("brokerId", str(self.broker_id), "above 0 with brokerRole=SLAVE")
        if self.broker_role != SLAVE and self.broker_id != MASTER_ID:
            raise BadConfig("brokerId", str(self.broker_id), f"0 with brokerRole={self.broker_role}")

    def _check_controller(self) -> None:
        """The role and the id that the configuration gives are not used, whatever they are: the controller gives both."""
        if self.enable_dleger_commit_log:
            raise BadConfig(
                "enableControllerMode",
                "true",
                "false with enableDLegerCommitLog=true: either a controller elects, or the group",
            )
        if not parse_addresses(self.controller_addr):
            raise BadConfig("controllerAddr", "", "all controllers, such as 10.0.0.1:19876;10.0.0.2:19876;10.0.0.3:19876")
        if self.controller_heart_beat_timeout_mills <= (interval := self.broker_heartbeat_interval):
            raise BadConfig(
                "controllerHeartBeatTimeoutMills",
                str(self.controller_heart_beat_timeout_mills),
                f"more than brokerHeartbeatInterval, which is {interval}: it would count as dead between two heartbeats",
            )

    def _check_dledger(self) -> None:
        if self.broker_role == SLAVE or self.broker_id != MASTER_ID:
            raise BadConfig("brokerRole", self.broker_role, "ASYNC_MASTER with brokerId 0: a DLedger group elects its master")
        if not NODE_ID.fullmatch(self.dleger_self_id):
            raise BadConfig("dLegerSelfId", self.dleger_self_id, "a letter and a number, such as n0")
        if self.raft_dialect == "java" and self.ha_secret:
            raise BadConfig("haSecret", "…", "empty with raftDialect=java: nodes of Apache's cannot prove that they know it")
        if self.raft_dialect == "java" and self.store_type == MEMORY:
            raise BadConfig(
                "storeType",
                MEMORY,
                f"{FILES} with raftDialect=java: a node that has lost its store votes at once there, and could "
                "elect a leader that lacks what was acknowledged",
            )
        if not self.dleger_peers:
            raise BadConfig("dLegerPeers", "", "all nodes of the group, such as n0-127.0.0.1:40911;n1-127.0.0.1:40912")

    @property
    def replica_id(self) -> int:
        """The broker id of a DLedger node that does not lead: the number in its own id plus one."""
        return int(self.dleger_self_id[1:]) + 1

    @property
    def is_slave(self) -> bool:
        return self.broker_role == SLAVE and not self.enable_controller_mode

    @property
    def name_servers(self) -> list[Address]:
        """The addresses of `namesrv_addr`."""
        return parse_addresses(self.namesrv_addr)

    @property
    def node_credentials(self) -> Credentials | None:
        """With what this node signs requests to its master; None if it cannot."""
        own = node_credentials(self.ha_secret.encode()) if self.ha_protocol == "ledgermq" else None
        return own or credentials_in(self.inner_client_authentication_credentials, "accessKey", "secretKey")

    @property
    def configured_users(self) -> dict[str, User]:
        """The super users that this configuration names, by name."""
        given = (
            credentials_in(self.init_authentication_user, "username", "password"),
            credentials_in(self.inner_client_authentication_credentials, "accessKey", "secretKey"),
        )
        return {one.access_key: User(one.access_key, one.secret_key, is_super=True) for one in given if one is not None}

    def store_config(self) -> StoreConfig:
        """The settings that the store uses."""
        own = {field.name for field in attrs.fields(type(self))}
        return StoreConfig(
            **{field.name: getattr(self, field.name) for field in attrs.fields(StoreConfig) if field.name in own}
        )

    def entries(self) -> dict[str, str]:
        """All entries under RocketMQ's keys, including unknown ones, without secrets and without settings that are None."""
        known = {
            key: setting_text(value)
            for key, name in KEYS.items()
            if (value := getattr(self, name)) is not None and key not in SECRET_KEYS
        }
        return {**known, **self.tls.shown(), **self.others}

    def to_properties(self) -> str:
        """Write the text that `read_broker_conf` reads, without secrets, because every client may ask for it."""
        return write_properties(self.entries())


def parse_addresses(text: str) -> list[Address]:
    """Read addresses separated by `;` or `,`.

    Raises:
        ValueError: an address is not HOST:PORT.
    """
    return [Address.parse(part) for part in re.split("[;,]", text) if part.strip()]


def key_of(field: attrs.Attribute[Any]) -> str:
    """RocketMQ's key of a field."""
    name: str | None = field.metadata.get("name")
    return name or re.sub(r"_(\w)", lambda match: match[1].upper(), field.name)


_FIELDS = {key_of(field): field for field in attrs.fields(BrokerConfig) if field.name not in ("tls", "others")}
KEYS: Mapping[str, str] = {key: field.name for key, field in _FIELDS.items()}
"""RocketMQ's keys and our field names; those of TLS are in `remoting.tls`."""
SECRET_KEYS = tuple(key for key, field in _FIELDS.items() if field.metadata.get("secret"))
"""The keys whose values are secrets; each may come from the file that the same key with `File` names."""


NOT_THERE = {
    "enableSlaveActingMaster": "acting master, so nobody would stand in for a master that is away",
    "enableRemoteEscape": "acting master, so nobody would stand in for a master that is away",
    "enableAutoInSyncReplicas": "automatic choice of in-sync replicas: set inSyncReplicas and minInSyncReplicas",
    "duplicationEnable": "duplication, so a slave would take no messages",
    "enableConsumeQueueExt": "extension of consume queues, so filters by SQL would pass over messages",
    "enableMultiDispatch": "light message queues, so messages would be missing there",
    "enableLmq": "light message queues, so messages would be missing there",
    "enabledAppendPropCRC": "CRC in the properties, so records would not be checked by it",
    "forceVerifyPropCRC": "CRC in the properties, so records would not be checked by it",
}
"""Keys of RocketMQ for features that this broker does not have, and what would go wrong without them. If one is true, the
broker does not start."""


ONLY = {
    "totalReplicas": ("1", "copies are counted by inSyncReplicas and minInSyncReplicas here"),
    "readOnlyCommitLogStorePaths": ("", "this broker keeps its log in one directory, and would not find what is in others"),
    "messageStorePlugIn": ("", "plug-ins of Java's message store cannot run here, and what they do would be missing"),
}
"""Keys of RocketMQ that may have only one value here, and why."""


def read_broker_conf(text: str) -> BrokerConfig:
    """Read a `broker.conf`; unknown keys are kept and named in one warning.

    Raises:
        BadConfig: a value is not allowed.
    """
    try:
        return config_of(read_properties(text))
    except BadProperties as error:
        raise BadConfig("the text", text[:SHOWN_CHARACTERS], f"properties: {error}") from error


def config_of(entries: Mapping[str, str], base: BrokerConfig | None = None) -> BrokerConfig:
    """Make a configuration from entries under RocketMQ's keys; settings without an entry come from `base`.

    Raises:
        BadConfig: a value is not allowed.
    """
    values: dict[str, Any] = {}
    others = dict(base.others) if base is not None else {}
    unknown: list[str] = []
    for key, value in entries.items():
        field = _FIELDS.get(key)
        if field is not None:
            values[field.name] = _value_of(field, key, value.strip())
        elif key not in TLS_KEYS:
            if key in ONLY and value.strip() != ONLY[key][0]:
                raise BadConfig(key, value, f"{ONLY[key][0] or 'empty'}: {ONLY[key][1]}")
            if key in NOT_THERE and value.strip().lower() == "true":
                raise BadConfig(key, value, f"false: this broker has no {NOT_THERE[key]}")
            refuse_misspelt(key, (*_FIELDS, *TLS_KEYS, *NOT_THERE, *ONLY), BadConfig)
            others[key] = value
            unknown.append(key)
    if unknown:
        log.warning("unknown_config_keys_ignored", keys=sorted(unknown))
    try:
        tls = (TlsSettings() if base is None else base.tls).updated(entries)
    except BadTlsSetting as error:
        raise BadConfig(error.key, error.value, error.allowed) from error
    if base is not None:
        return attrs.evolve(base, **values, tls=tls, others=others)
    return BrokerConfig(**values, tls=tls, others=others)


def _value_of(field: attrs.Attribute[Any], key: str, text: str) -> Any:
    kind = str(field.type)
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise BadConfig(key, text, "true or false")
        return text.lower() == "true"
    if kind == "int":
        digits, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 1)
        try:
            return long_of(digits) * unit
        except ValueError:
            raise BadConfig(key, text, "a whole number") from None
    return text
