"""Requests 25 and 26: read and change the broker's settings while it runs (RocketMQ AdminBrokerProcessor).

A request is applied completely or not at all. Settings that are fixed at the start (the broker's identity, addresses, files and
role) are refused by name, and so are unknown ones: a typing error must not look like success. `broker.conf` is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...message.data_version import DataVersion
from ...message.json import dumps
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.java_properties import PROPERTIES_BYTES_MAX, read_properties
from ...remoting.server import ServerConnection
from ...store.config import StoreConfig
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ...world.events import get_logger
from ..config import KEYS, BrokerConfig, config_of
from ..errors import BadConfig
from ..live_config import LiveConfig
from ..tables.groups import GroupTable
from ..tables.topics import TEMPLATE_TOPIC, TopicTable, system_topics

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
        "fileReservedTime",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "cleanFileForciblyEnable",
        "deleteFileBatchMax",
        "scrubBytesPerSecond",
    )
)
"""Keys that are read at each use; the others are read only at the start."""

assert KEYS.keys() >= CHANGEABLE

_STORE_FIELDS = frozenset(field.name for field in attrs.fields(StoreConfig))


@attrs.define(eq=False, kw_only=True, repr=False)
class Settings:
    """The handlers of requests for settings."""

    config: LiveConfig
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    version: DataVersion = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.version = DataVersion(0, self.clock.wall_ms())

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register(RequestCode.UPDATE_BROKER_CONFIG, self.change, body_bytes_max=PROPERTIES_BYTES_MAX)
        dispatcher.register(RequestCode.GET_BROKER_CONFIG, self.show)

    def show(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """26: every setting as properties text."""
        version = dumps(self.version.to_json()).decode()
        return request.response(ext={"version": version}, body=self.config.now.to_properties().encode())

    def change(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """25: change settings until the next start."""
        try:
            entries = read_properties(request.body.decode())
        except ValueError as error:  # not UTF-8, or not properties
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the body is not properties text: {error}") from error
        changed = changed_config(self.config.now, entries)
        if changed == self.config.now:
            return request.response()
        self._apply(changed, entries)
        self.version = self.version.next(self.clock.wall_ms())
        log.info("broker_config_changed", entries=entries)
        return request.response()

    def reload(self, before: BrokerConfig, after: BrokerConfig) -> None:
        """Apply the changes in a configuration file to settings that may change while the broker runs.

        Args:
            before: the content of the file when it was last read.
            after: its content now.
        """
        entries_before, entries_now = before.entries(), after.entries()
        different = {key for key in KEYS if entries_before.get(key) != entries_now.get(key)}
        changeable = {key: entries_now[key] for key in sorted(different & CHANGEABLE)}
        if changeable:
            self._apply(config_of(changeable, self.config.now), changeable)
            log.info("broker_config_changed", entries=changeable)
        if fixed := sorted(different - CHANGEABLE):
            log.warning("broker_config_needs_restart", keys=fixed)
        if not different:
            log.info("broker_config_unchanged")

    def _apply(self, changed: BrokerConfig, keys: Iterable[str]) -> None:
        before, self.config.now = self.config.now, changed
        self.groups.auto_create = changed.auto_create_subscription_group
        if changed.auto_create_topic_enable != before.auto_create_topic_enable:
            self._offer_template()
        if changed.broker_permission != before.broker_permission:
            self.topics.touch()  # name servers accept a table only with a new version
        of_store = [name for key in keys if (name := KEYS[key]) in _STORE_FIELDS]
        self.store.config = attrs.evolve(self.store.config, **{name: getattr(changed, name) for name in of_store})

    def _offer_template(self) -> None:
        # The template topic exists only while topics can be created by sending.
        for topic in system_topics(self.config.now):
            if topic.topic_name == TEMPLATE_TOPIC:
                self.topics.put(topic)
                return
        self.topics.delete(TEMPLATE_TOPIC)


def changed_config(config: BrokerConfig, entries: dict[str, str]) -> BrokerConfig:
    """Return the configuration with these entries, if they may change while the broker runs.

    Raises:
        RequestRefused: an entry may not change, is unknown or has a bad value. Nothing was changed.
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
