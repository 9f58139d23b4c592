"""The broker's settings, shown and changed while it runs (RocketMQ AdminBrokerProcessor): requests 25 and 26.

A change is taken whole or not at all. What is fixed at the start (who and where the broker is, its files, its role) is refused
by name, and so is what we do not know: a typing error must not look like success. `broker.conf` itself is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from ...message.data_version import DataVersion
from ...message.json import dumps
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ...remoting.java_properties import PROPERTIES_BYTES_MAX, read_properties
from ...remoting.server import ServerConnection
from ...store.config import StoreConfig
from ...world.events import get_logger
from ..config import KEYS, BrokerConfig, config_of
from ..errors import BadConfig
from ..topics import TEMPLATE_TOPIC, system_topics

if TYPE_CHECKING:
    from ..broker import Broker

log = get_logger(__name__)

CHANGEABLE = frozenset(
    (
        "brokerPermission",
        "registerNameServerPeriod",
        "forceRegister",
        "autoCreateTopicEnable",
        "autoCreateSubscriptionGroup",
        "maxMessageSize",
        "notifyConsumerIdsChangedEnable",
        "longPollingEnable",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
        "accessMessageInMemoryMaxRatio",
        "maxFilterMessageSize",
        "defaultQueryMaxNum",
        "offsetCheckInSlave",
        "useServerSideResetOffset",
        "syncFlushTimeout",
        "fileReservedTime",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "cleanFileForciblyEnable",
        "deleteFileBatchMax",
    )
)
"""Keys that whoever uses them reads each time; the others are built into what runs."""

assert KEYS.keys() >= CHANGEABLE

_STORE_FIELDS = frozenset(field.name for field in attrs.fields(StoreConfig))


def register(broker: Broker) -> None:
    """Let the broker answer the requests of this module."""
    settings = Settings(broker, DataVersion(0, broker.world.clock.wall_ms()))
    broker.dispatcher.register(RequestCode.UPDATE_BROKER_CONFIG, settings.change, body_bytes_max=PROPERTIES_BYTES_MAX)
    broker.dispatcher.register(RequestCode.GET_BROKER_CONFIG, settings.show)


@attrs.define(eq=False)
class Settings:
    """The handlers, over one broker."""

    broker: Broker
    version: DataVersion

    def show(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """26: every setting as properties text."""
        version = dumps(self.version.to_json()).decode()
        return request.response(ext={"version": version}, body=self.broker.config.to_properties().encode())

    def change(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """25: change settings until the next start."""
        try:
            entries = read_properties(request.body.decode())
        except ValueError as error:  # not UTF-8, or not properties
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the body is not properties text: {error}") from error
        broker = self.broker
        changed = changed_config(broker.config, entries)
        if changed == broker.config:
            return request.response()
        _apply(broker, changed, entries)
        self.version = self.version.next(broker.world.clock.wall_ms())
        log.info("broker_config_changed", entries=entries)
        return request.response()


def reload_config(broker: Broker, before: BrokerConfig, after: BrokerConfig) -> None:
    """Take over what has changed in a configuration file, as far as it may change while the broker runs.

    Args:
        broker: the running broker.
        before: what the file said when it was read last.
        after: what it says now.
    """
    told_before, told_now = before.entries(), after.entries()
    different = {key for key in KEYS if told_before.get(key) != told_now.get(key)}
    changeable = {key: told_now[key] for key in sorted(different & CHANGEABLE)}
    if changeable:
        _apply(broker, config_of(changeable, broker.config), changeable)
        log.info("broker_config_changed", entries=changeable)
    if fixed := sorted(different - CHANGEABLE):
        log.warning("broker_config_needs_restart", keys=fixed)
    if not different:
        log.info("broker_config_unchanged")


def _apply(broker: Broker, changed: BrokerConfig, keys: Iterable[str]) -> None:
    before, broker.config = broker.config, changed
    broker.sends.config = changed
    broker.groups.auto_create = changed.auto_create_subscription_group
    if changed.auto_create_topic_enable != before.auto_create_topic_enable:
        _offer_template(broker)
    if changed.broker_permission != before.broker_permission:
        broker.topics.touch()  # name servers take a table only with a new version
    of_store = [name for key in keys if (name := KEYS[key]) in _STORE_FIELDS]
    broker.store.config = attrs.evolve(broker.store.config, **{name: getattr(changed, name) for name in of_store})


def _offer_template(broker: Broker) -> None:
    # The template topic exists exactly while topics are created by sending.
    for topic in system_topics(broker.config):
        if topic.topic_name == TEMPLATE_TOPIC:
            broker.topics.put(topic)
            return
    broker.topics.delete(TEMPLATE_TOPIC)


def changed_config(config: BrokerConfig, entries: dict[str, str]) -> BrokerConfig:
    """Put entries over a configuration, as far as they may change while the broker runs.

    Raises:
        RequestRefused: one of them may not, is unknown or has a bad value. Nothing was changed.
    """
    present = config.entries()
    unknown = [key for key in entries if key not in KEYS]
    if unknown:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"this broker has no setting {', '.join(sorted(unknown))}")
    wanted = {key: value for key, value in entries.items() if present.get(key) != value.strip()}
    fixed = sorted(wanted.keys() - CHANGEABLE)
    if fixed:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"{', '.join(fixed)} cannot be changed while the broker runs; change broker.conf and start it again",
        )
    try:
        return config_of(wanted, config)
    except BadConfig as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
