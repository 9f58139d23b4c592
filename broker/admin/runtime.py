"""The broker's state for tools (RocketMQ GET_BROKER_RUNTIME_INFO, GET_BROKER_HA_STATUS): requests 28 and 907.

All values are texts under RocketMQ's names. Tools of both generations fail if some of them are missing, so features that we do
not have (thread pools and their queues, the timer wheel) have the zero that an idle broker shows. Times that we do not measure
(of single puts and gets) are left out, because a zero would be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ...message.json import dumps
from ...native import path_text
from ...remoting.codes import RequestCode
from ...remoting.command import PROTOCOL_VERSION, RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.server import ServerConnection
from ...store.config import SCHEDULE_TOPIC
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ...world.version import own_version
from ..delay import DelayDelivery
from ..stats import Stats, Totals

VERSION_DESCRIPTION = "V4_9_8"
"""The name of `PROTOCOL_VERSION`."""
assert PROTOCOL_VERSION == 409

RATE_SECONDS = (10, 60, 600)
"""The periods over which each rate is given, in seconds."""

_ZERO = dict.fromkeys(
    (
        # thread pools: every request is handled as it arrives
        *(
            f"{pool}ThreadPoolQueue{what}"
            for pool in ("send", "pull", "litePull", "query", "ack")
            for what in ("Size", "Capacity", "HeadWaitTimeMills")
        ),
        "EndTransactionQueueSize",
        "EndTransactionThreadPoolQueueCapacity",
        # locks and buffers that we do not have
        "pageCacheLockTimeMills",
        "dispatchMaxBuffer",
        "remainTransientStoreBufferNumbs",
        # the timer wheel
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        # the broker accepts sends immediately after a start
        "startAcceptSendRequestTimeStamp",
    ),
    "0",
) | {
    "remainHowManyDataToCommit": "0 B",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


@attrs.define(eq=False, kw_only=True, repr=False)
class Runtime:
    """The handlers of requests for the broker's state."""

    clock: Clock
    store: MessageStore
    stats: Stats
    delay: DelayDelivery
    replication_status: Callable[[], Mapping[str, Any]]

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.show)
        dispatcher.register(RequestCode.GET_BROKER_HA_STATUS, self.ha_status)

    def show(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """28: all values in one table."""
        return request.response(body=dumps({"table": self.values()}))

    def values(self) -> dict[str, str]:
        """All values by RocketMQ's keys."""
        return {**_ZERO, **self._of_broker(), **self._of_traffic(), **self._of_store(), **self._of_delay()}

    def _of_broker(self) -> dict[str, str]:
        started_ms = self.stats.started_ms
        return {
            "brokerActive": "true",
            "brokerVersion": str(PROTOCOL_VERSION),
            "brokerVersionDesc": VERSION_DESCRIPTION,
            "ledgermqVersion": own_version(),
            "ledgermqPath": path_text(),
            "bootTimestamp": str(started_ms),
            "runtime": duration_text(self.clock.wall_ms() - started_ms),
        }

    def _of_traffic(self) -> dict[str, str]:
        stats = self.stats
        now, today, yesterday = stats.totals(), stats.today_morning, stats.yesterday_morning
        transferred = self._rates(lambda totals: totals.got)
        return {
            "putTps": self._rates(lambda totals: totals.put),
            "getFoundTps": self._rates(lambda totals: totals.found),
            "getMissTps": self._rates(lambda totals: totals.missed),
            "getTotalTps": self._rates(lambda totals: totals.found + totals.missed),
            # Both spellings are given: clients up to 4.9 read the first, later ones the second.
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "msgPutTotalTodayNow": str(now.put),
            "msgPutTotalTodayMorning": str(today.put),
            "msgPutTotalYesterdayMorning": str(yesterday.put),
            "msgGetTotalTodayNow": str(now.got),
            "msgGetTotalTodayMorning": str(today.got),
            "msgGetTotalYesterdayMorning": str(yesterday.got),
            "putMessageTimesTotal": str(now.put),
            "putMessageFailedTimes": str(now.put_failed),
            "putMessageSizeTotal": str(now.put_size),
            "putMessageAverageSize": str(now.put_size / max(now.put, 1)),
        }

    def _rates(self, what: Callable[[Totals], int]) -> str:
        return " ".join(str(self.stats.per_second(what, seconds)) for seconds in RATE_SECONDS)

    def _of_store(self) -> dict[str, str]:
        store = self.store
        disk, directory = store.world.disk, store.config.commit_log_directory
        usage = disk.usage(directory)
        return {
            "commitLogMinOffset": str(store.log.min_offset),
            "commitLogMaxOffset": str(store.log.max_offset),
            "commitLogDiskRatio": f"{usage.ratio:.2f}",
            f"commitLogDiskRatio_{directory}": f"{usage.ratio:.2f}",
            "consumeQueueDiskRatio": f"{disk.usage(store.config.store_path_root_dir).ratio:.2f}",
            "commitLogDirCapacity": f"Total : {size_text(usage.total)}, Free : {size_text(usage.free)}.",
            "remainHowManyDataToFlush": size_text(store.log.max_offset - store.log.flushed_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "earliestMessageTimeStamp": str(store.earliest_store_time()),
        }

    def _of_delay(self) -> dict[str, str]:
        # Each level that was ever used has the next offset to deliver and the end of its queue.
        store, values = self.store, dict[str, str]()
        for level, offset in self.delay.offsets().items():
            high = store.max_offset(SCHEDULE_TOPIC, level - 1)
            if high > 0:
                values[f"scheduleMessageOffset_{level}"] = f"{offset},{high}"
        return values

    def ha_status(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """907: the slaves of this broker, or the master that it follows."""
        return request.response(body=dumps(self.replication_status()))


def duration_text(milliseconds: int) -> str:
    minutes, seconds = divmod(max(milliseconds, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.1f} {unit}"
    raise AssertionError(unit)
