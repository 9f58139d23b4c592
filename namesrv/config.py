"""One frozen configuration of a name server, read from RocketMQ's `namesrv.conf` (its NamesrvConfig and NettyServerConfig).

Field names are RocketMQ's keys in snake case. Unknown keys are named in one warning; they are shown to nobody, for the value of
one may be the password of a controller that shares the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import attrs

from ..remoting.errors import BadProperties, BadTlsSetting
from ..remoting.java_properties import (
    SHOWN_NOT,
    read_properties,
    refuse_misspelt,
    setting_text,
    setting_value,
    write_properties,
)
from ..remoting.monitoring import PROM
from ..remoting.tls import TLS_KEYS, TlsSettings
from ..world.events import get_logger
from .errors import BadNamesrvConfig

log = get_logger(__name__)


@attrs.frozen(kw_only=True)
class NamesrvConfig:
    """All settings of a name server. Times are in milliseconds unless the name says otherwise."""

    listen_port: int = 9876
    bind_address: str = "0.0.0.0"
    kv_config_path: str = ""
    """The file of the KV configuration; if empty, it is only in memory."""
    config_store_path: str = ""
    """The file of settings that administrators changed; if empty, they are only in memory."""
    order_message_enable: bool = False
    """Whether routes carry the order configuration of their topic."""
    return_order_topic_config_to_broker: bool = True
    scan_not_active_broker_interval: int = 5000
    server_channel_max_idle_time_seconds: int = 120
    support_acting_master: bool = False
    """Whether a route names the slave with the lowest id as the master of a broker without one, for reading."""
    notify_min_broker_id_changed: bool = False
    """Whether brokers are notified when another broker of their name gets the lowest id."""
    delete_topic_with_broker_registration: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    enable_controller_in_namesrv: bool = False
    """Whether the process runs a controller, too, whose keys are in the same file."""
    metrics_exporter_type: str = "DISABLE"
    """Our own key here, RocketMQ's for brokers: `PROM` serves metrics and the state for probes over HTTP."""
    metrics_prom_exporter_host: str = "127.0.0.1"
    """The address to serve them on, empty for all. Nobody who reaches it has to prove anything."""
    metrics_prom_exporter_port: int = 5558
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that no administrator may change through the network."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """The settings whose keys begin with `tls.`."""

    def entries(self) -> dict[str, str]:
        """All settings under RocketMQ's keys; passwords are left out."""
        known = {key: setting_text(getattr(self, field.name)) for key, field in _FIELDS.items()}
        return {**known, **self.tls.shown()}

    def to_properties(self) -> str:
        """Write what `read_namesrv_conf` reads."""
        return write_properties(self.entries())

    def with_entries(self, entries: Mapping[str, str]) -> NamesrvConfig:
        """Return a copy of this configuration with some entries changed; unknown ones are passed over.

        Raises:
            BadNamesrvConfig: a value is not allowed.
        """
        values = {field.name: _value(key, field, entries[key]) for key, field in _FIELDS.items() if key in entries}
        try:
            tls = self.tls.updated(entries)
        except BadTlsSetting as error:
            raise BadNamesrvConfig(error.key, error.value, error.allowed) from error
        return attrs.evolve(self, **values, tls=tls)


def read_namesrv_conf(
    text: str, base: NamesrvConfig | None = None, *, keys_of_controller: Collection[str] = ()
) -> NamesrvConfig:
    """Read properties text, on top of `base`; unknown keys are named in one warning.

    Args:
        keys_of_controller: these are left out if the file switches a controller on, which reads them.

    Raises:
        BadNamesrvConfig: a value is not allowed, or a key is a misspelling of a known one.
    """
    try:
        entries = read_properties(text)
    except BadProperties as error:
        raise BadNamesrvConfig("the text", SHOWN_NOT, f"properties: {error}") from error
    if entries.get("enableControllerInNamesrv", "").strip().lower() == "true":
        entries = {key: value for key, value in entries.items() if key in _FIELDS or key not in keys_of_controller}
    for key in entries:
        if key not in _FIELDS and key not in TLS_KEYS:
            refuse_misspelt(key, (*_FIELDS, *TLS_KEYS), BadNamesrvConfig)
    if unknown := sorted(entries.keys() - _FIELDS.keys() - TLS_KEYS.keys()):
        log.warning("unknown_config_keys_ignored", keys=unknown)
    return (base or NamesrvConfig()).with_entries(entries)


def _key(field: attrs.Attribute[Any]) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), field.name)


_FIELDS = {_key(field): field for field in attrs.fields(NamesrvConfig) if field.name != "tls"}
KEYS: Mapping[str, str] = {key: field.name for key, field in _FIELDS.items()}
"""RocketMQ's keys and our field names."""


_RANGES = {
    "listenPort": (0, 65535),
    # A shorter interval gains nothing, and one of 0 would keep a processor busy.
    "scanNotActiveBrokerInterval": (10, 3_600_000),
    # Brokers register every 10 to 60 seconds: a shorter time would close their connections in between.
    "serverChannelMaxIdleTimeSeconds": (61, 86_400),
    "metricsPromExporterPort": (0, 65535),
}
assert _RANGES.keys() == {key for key, field in _FIELDS.items() if type(field.default) is int}

CHANGEABLE = frozenset(
    (
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "scanNotActiveBrokerInterval",
        "supportActingMaster",
        "notifyMinBrokerIdChanged",
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
    )
)
"""Keys that an administrator may change through the network, because their values are read at each use."""
assert KEYS.keys() >= CHANGEABLE


def _value(key: str, field: attrs.Attribute[Any], text: str) -> Any:
    text = text.strip()
    if key == "metricsExporterType" and text not in ("DISABLE", PROM):
        raise BadNamesrvConfig(key, text, f"one of DISABLE, {PROM}")
    return setting_value(key, text, field.default, _RANGES, BadNamesrvConfig)
