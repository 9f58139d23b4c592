"""One frozen configuration of a controller, read from RocketMQ's `controller.conf` (ControllerConfig, NettyServerConfig).

Keys are RocketMQ's; each stands at its field, with the values that it may have. Unknown keys are kept as text and named in one
warning. In the file of a name server that runs a controller too, `listenPort`, for instance, is the name server's, so the
controller has `controllerListenPort` there (`EMBEDDED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ...remoting.errors import BadProperties, BadTlsSetting
from ...remoting.java_properties import (
    SHOWN_NOT,
    read_properties,
    refuse_misspelt,
    setting_text,
    setting_value,
    write_properties,
)
from ...remoting.monitoring import PROM
from ...remoting.tls import TLS_KEYS, TlsSettings
from ...world.address import is_loopback_host
from ...world.events import get_logger
from ..dledger.ledger.recovery import LedgerFiles
from ..dledger.settings import ReplicaSettings, parse_peers
from ..errors import WrongHaSetting
from ..raft.settings import Settings as RaftSettings
from ..raft.units import PeerId
from .errors import BadControllerConfig

log = get_logger(__name__)

DATA_FILE_BYTES, INDEX_FILE_BYTES = 4 * 1024 * 1024, 2 * 1024 * 1024
"""The sizes of the files of the log, which must be the same on all nodes of a group; RocketMQ's `mappedFileSize` is ignored."""
PACE = RaftSettings(heartbeat_ticks=10, election_ticks_min=30, election_ticks_max=60)
"""Heartbeats every 200 ms, elections after 600 to 1,200 ms, which is half the pace of a group of brokers: an idle leader does
little but wake for heartbeats and their answers, and masters keep serving while controllers elect."""
NUMBERS: Mapping[str, tuple[int, int]] = {
    "listenPort": (0, 65535),
    "metricsPromExporterPort": (0, 65535),
    "scanNotActiveBrokerInterval": (10, 3_600_000),
    "serverChannelMaxIdleTimeSeconds": (61, 86_400),
}
"""The least and the largest value of each key that is a number."""


def _setting(key: str, default: Any, *, changeable: bool = False) -> Any:
    return attrs.field(default=default, metadata={"key": key, "changeable": changeable})


@attrs.frozen(kw_only=True)
class ControllerConfig:
    """All settings of a controller. Times are in milliseconds unless the name says otherwise."""

    listen_port: int = _setting("listenPort", 19876)
    """The port on which brokers and administrators ask."""
    bind_address: str = _setting("bindAddress", "0.0.0.0")
    group: str = _setting("controllerDLegerGroup", "controller")
    peers: str = _setting("controllerDLegerPeers", "n0-127.0.0.1:9877")
    """The nodes of the group, with the addresses at which they talk to each other."""
    self_id: str = _setting("controllerDLegerSelfId", "n0")
    store_path: str = _setting("controllerStorePath", "")
    config_store_path: str = _setting("configStorePath", "")
    """The file of settings that administrators changed; if empty, they are only in memory."""
    enable_elect_unclean_master: bool = _setting("enableElectUncleanMaster", default=False, changeable=True)
    """Whether a replica that may lack acknowledged messages is elected if no other one is alive."""
    notify_broker_role_changed: bool = _setting("notifyBrokerRoleChanged", default=True, changeable=True)
    scan_not_active_broker_interval: int = _setting("scanNotActiveBrokerInterval", 5000, changeable=True)
    """How often elections that failed are tried again; a master's death is noticed at once."""
    server_channel_max_idle_time_seconds: int = _setting("serverChannelMaxIdleTimeSeconds", 120)
    ha_secret: str = attrs.field(default="", repr=False, metadata={"key": "haSecret", "changeable": False})
    """The secret of all nodes of the group."""
    allow_empty_ha_secret: bool = _setting("allowEmptyHaSecret", default=False)
    authentication_enabled: bool = _setting("authenticationEnabled", default=False)
    """Whether only requests are carried out that are signed with `ha_secret`."""
    metrics_exporter_type: str = _setting("metricsExporterType", "DISABLE")
    """`PROM` serves metrics and the state for probes over HTTP."""
    metrics_prom_exporter_host: str = _setting("metricsPromExporterHost", "127.0.0.1")
    metrics_prom_exporter_port: int = _setting("metricsPromExporterPort", 5559)
    config_black_list: str = _setting("configBlackList", "configBlackList;configStorePath")
    """Keys that no administrator may change through the network."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """The settings whose keys begin with `tls.`."""
    others: Mapping[str, str] = attrs.field(factory=dict[str, str])

    def entries(self) -> dict[str, str]:
        """All entries under RocketMQ's keys, the unknown ones too; secrets are left out."""
        known = {key: setting_text(getattr(self, name)) for key, name in KEYS.items() if name != "ha_secret"}
        return {**known, **self.tls.shown(), **self.others}

    def to_properties(self) -> str:
        """Write what `read_controller_conf` reads, without secrets, because anybody may ask for it."""
        return write_properties(self.entries())

    def with_entries(self, entries: Mapping[str, str]) -> ControllerConfig:
        """Return a copy of this configuration with some entries changed.

        Raises:
            BadControllerConfig: a value is not allowed.
        """
        values = {KEYS[key]: _value(key, text.strip()) for key, text in entries.items() if key in KEYS}
        unknown = {key: text for key, text in entries.items() if key not in KEYS and key not in TLS_KEYS}
        try:
            tls = self.tls.updated(entries)
        except BadTlsSetting as error:
            raise BadControllerConfig(error.key, error.value, error.allowed) from error
        return attrs.evolve(self, **values, tls=tls, others={**self.others, **unknown})

    def replica_settings(self, port: int) -> ReplicaSettings:
        """The settings of the node of the group.

        Args:
            port: where this controller answers requests, which it says to the others.

        Raises:
            WrongHaSetting: the keys cannot work together. Nothing was started.
        """
        if not (self.ha_secret or self.allow_empty_ha_secret or is_loopback_host(self.bind_address)):
            raise WrongHaSetting(
                f"haSecret is empty, and this controller listens beyond its machine (bindAddress={self.bind_address}): whoever "
                "reaches the port of its group could elect masters. Set one haSecret on all controllers, or "
                "allowEmptyHaSecret=true where the network keeps strangers away. Nothing was started"
            )
        if self.authentication_enabled and not self.ha_secret:
            raise WrongHaSetting(
                "authenticationEnabled=true without a haSecret: no request would be carried out. Set one haSecret on "
                "all controllers and brokers. Nothing was started"
            )
        self_id, peers = PeerId(self.self_id), parse_peers(self.peers, "controllerDLegerPeers")
        if self_id not in peers:
            raise WrongHaSetting(
                f"controllerDLegerSelfId is {self_id}, which is not among controllerDLegerPeers ({', '.join(peers) or 'none'})"
            )
        return ReplicaSettings(
            group=self.group,
            self_id=self_id,
            peers=peers,
            files=LedgerFiles(f"{self.store_path}/dledger-{self_id}", DATA_FILE_BYTES, INDEX_FILE_BYTES),
            secret=self.ha_secret.encode(),
            serves=str(attrs.evolve(peers[self_id], port=port)),
            listen_host=self.bind_address,
            raft=PACE,
        )


_FIELDS = {field.metadata["key"]: field for field in attrs.fields(ControllerConfig) if "key" in field.metadata}
KEYS: Mapping[str, str] = {key: field.name for key, field in _FIELDS.items()}
"""RocketMQ's keys and our field names."""
CHANGEABLE = frozenset(key for key, field in _FIELDS.items() if field.metadata["changeable"])
"""Keys that an administrator may change through the network, because their values are read at each use."""
EMBEDDED = {
    "controllerListenPort": "listenPort",
    "controllerConfigStorePath": "configStorePath",
    "controllerMetricsExporterType": "metricsExporterType",
    "controllerMetricsPromExporterHost": "metricsPromExporterHost",
    "controllerMetricsPromExporterPort": "metricsPromExporterPort",
}
"""Keys that have another name in the file of a name server."""


def read_controller_conf(text: str, base: ControllerConfig | None = None, *, embedded: bool = False) -> ControllerConfig:
    """Read properties text, on top of `base`; unknown keys are kept and named in one warning.

    Args:
        embedded: whether this is the file of a name server that runs a controller too; its own keys are left out.

    Raises:
        BadControllerConfig: a value is not allowed, or a key is a misspelling of a known one.
    """
    try:
        entries = read_properties(text)
    except BadProperties as error:
        raise BadControllerConfig("the text", SHOWN_NOT, f"properties: {error}") from error
    base = base or ControllerConfig()
    if embedded:
        own = {EMBEDDED.get(key, key): value for key, value in entries.items() if key not in EMBEDDED.values()}
        return base.with_entries({key: value for key, value in own.items() if key in KEYS or key in TLS_KEYS})
    for key in entries:
        if key not in KEYS and key not in TLS_KEYS:
            refuse_misspelt(key, (*KEYS, *TLS_KEYS), BadControllerConfig)
    config = base.with_entries(entries)
    if config.others:
        log.warning("unknown_config_keys_ignored", keys=sorted(config.others))
    return config


def _value(key: str, text: str) -> Any:
    if key == "metricsExporterType" and text not in ("DISABLE", PROM):
        raise BadControllerConfig(key, text, f"one of DISABLE, {PROM}")
    return setting_value(key, text, _FIELDS[key].default, NUMBERS, BadControllerConfig)
