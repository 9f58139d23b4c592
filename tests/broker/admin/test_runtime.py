"""What tools show of a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ledgermq.broker.admin.runtime import duration_text, size_text
from ledgermq.remoting.codes import RequestCode

from .desk import Desk, open_desk

# What mqadmin's clusterList (also with -m) takes for granted, in any version.
NEEDED = frozenset(
    (
        "brokerVersionDesc",
        "putTps",
        "getTransferedTps",
        "getTransferredTps",
        "sendThreadPoolQueueSize",
        "pullThreadPoolQueueSize",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "pageCacheLockTimeMills",
        "earliestMessageTimeStamp",
        "commitLogDiskRatio",
        "brokerActive",
        "ackThreadPoolQueueSize",
        "ackThreadPoolQueueHeadWaitTimeMills",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "timerEnqueueTps",
        "timerDequeueTps",
        "msgPutTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgPutTotalTodayNow",
        "msgGetTotalYesterdayMorning",
        "msgGetTotalTodayMorning",
        "msgGetTotalTodayNow",
    )
)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path)) as desk:
        yield desk


async def test_broker_without_messages_shows_everything_that_tools_need(desk: Desk) -> None:
    """All keys are there from the start, all values are texts, and rates are three numbers."""
    table = desk.read(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]

    assert table.keys() >= NEEDED
    assert all(isinstance(value, str) for value in table.values())
    assert [float(rate) for rate in table["putTps"].split()] == [0.0, 0.0, 0.0]
    assert int(table["earliestMessageTimeStamp"]) == -1
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1


async def test_traffic_shows(desk: Desk) -> None:
    """Puts, gets and the log's bounds are the real ones."""
    desk.put("T1")
    await desk.settled()
    desk.broker.stats.topic_put("T1", 4, 400)
    desk.broker.stats.group_get("g1", "T1", 0, 3, 300, 9)
    desk.broker.stats.put_failed(2)

    table = desk.read(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]

    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "3")
    assert (table["putMessageTimesTotal"], table["putMessageSizeTotal"], table["putMessageAverageSize"]) == (
        "4",
        "400",
        "100.0",
    )
    assert table["putMessageFailedTimes"] == "2"
    assert int(table["commitLogMaxOffset"]) == desk.broker.store.log.max_offset > 0
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert table["dispatchBehindBytes"] == "0"


async def test_used_delay_levels_show_how_far_they_are(desk: Desk) -> None:
    """A level that holds messages has its position and its end."""
    desk.put("SCHEDULE_TOPIC_XXXX", queue_id=17, DELAY="18", REAL_TOPIC="T1", REAL_QID="0")
    await desk.settled()

    table = desk.read(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]

    assert table["scheduleMessageOffset_18"] == "0,1"
    assert "scheduleMessageOffset_1" not in table


async def test_master_without_slaves_says_so(desk: Desk) -> None:
    """GET_BROKER_HA_STATUS of a lone master."""
    status = desk.read(RequestCode.GET_BROKER_HA_STATUS)

    assert (status["master"], status["inSyncSlaveNums"], status["haConnectionInfo"]) == (True, 0, [])
    assert status["masterCommitLogMaxOffset"] == desk.broker.store.log.max_offset


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (252 << 30, "252.0 GiB"), (5 << 50, "5120.0 TiB")]
)
def test_sizes_are_printed_in_a_fitting_unit(size: int, text: str) -> None:
    """Up to the largest unit, then in that."""
    assert size_text(size) == text


def test_duration_is_printed_in_days_to_seconds() -> None:
    """As RocketMQ writes it; a clock that went back is no time at all."""
    assert duration_text(((26 * 60 + 3) * 60 + 4) * 1000) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert duration_text(-5) == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"
