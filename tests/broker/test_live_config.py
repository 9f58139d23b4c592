"""Settings that change while messages of every kind wait: none is lost, none comes twice, and none is hidden."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from ledgermq.broker.admin.settings import CHANGEABLE
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.layout import decode_records
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.world.real import World, real_world

from .desk import Desk, Peer, open_desk
from .test_delay import HandClock

DOWN_AND_UP = {
    "accessMessageInMemoryMaxRatio": ("1", "100"),
    "autoCreateSubscriptionGroup": ("false", "true"),
    "autoCreateTopicEnable": ("false", "true"),
    "brokerPermission": ("4", "6"),
    "cleanFileForciblyEnable": ("false", "consumed"),
    "defaultQueryMaxNum": ("1", "64"),
    "deleteFileBatchMax": ("1", "100"),
    "deleteWhen": ("00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23", "04"),
    "diskMaxUsedSpaceRatio": ("10", "95"),
    "fileReservedTime": ("1", "1000"),
    "forceRegister": ("false", "true"),
    "longPollingEnable": ("false", "true"),
    "maxFilterMessageSize": ("1", "1000000"),
    "maxMessageSize": ("100", "15728640"),
    "maxTransferBytesOnMessageInDisk": ("100", "15728640"),
    "maxTransferBytesOnMessageInMemory": ("100", "15728640"),
    "maxTransferCountOnMessageInDisk": ("1", "1000"),
    "maxTransferCountOnMessageInMemory": ("1", "1000"),
    "notifyConsumerIdsChangedEnable": ("false", "true"),
    "offsetCheckInSlave": ("false", "true"),
    "registerNameServerPeriod": ("1000", "60000"),
    "scrubBytesPerSecond": ("0", "1099511627776"),
    "shortPollingTimeMills": ("1", "60000"),
    "slaveReadEnable": ("false", "true"),
    "useServerSideResetOffset": ("false", "true"),
}
"""A low and a high value of every setting that may change while the broker runs."""

LARGE = bytes(200_000)
"""The end of the larger bodies; several of them fill a segment."""
NAMES = {
    "ordinary": ("T1", 0),
    "half-read": ("T1", 1),
    "delayed": ("T1", 2),
    "retried": ("%RETRY%g", 0),
    "dead": ("%DLQ%g", 0),
}
"""The queue in which the messages of each kind are read in the end."""
DUE_MS = 10_000
"""The delay of level 3, at which the delayed and the retried messages wait."""


def bodies(kind: str) -> list[bytes]:
    return [f"{kind} 1".encode(), f"{kind} 2".encode() + LARGE]


@attrs.define
class Waiting:
    """A broker with messages that wait, and the position of each in its log."""

    desk: Desk
    clock: HandClock
    peer: Peer
    offsets: dict[bytes, int] = attrs.field(factory=dict[bytes, int])

    @classmethod
    async def prepare(cls, desk: Desk, clock: HandClock) -> Waiting:
        desk.broker.topics.put(TopicConfig("T1", 4, 4), TopicConfig("%RETRY%g", 1, 1), TopicConfig("%DLQ%g", 1, 1))
        waiting = cls(desk, clock, desk.peer())
        for kind in NAMES:
            queue_id = {"ordinary": 0, "half-read": 1, "delayed": 2}.get(kind, 3)
            for body in bodies(kind):
                answer = waiting.peer.send("T1", body, queue_id, KEYS=kind, **({"DELAY": "3"} if kind == "delayed" else {}))
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                waiting.offsets[body] = int(answer.ext["msgId"][16:], 16)
        for kind, level in (("retried", 3), ("dead", -1)):
            for body in bodies(kind):
                waiting.send_back(body, level)
        await desk.settled()
        commit = {"consumerGroup": "g", "topic": "T1", "queueId": 1, "commitOffset": 1}
        assert waiting.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == ResponseCode.SUCCESS
        return waiting

    def send_back(self, body: bytes, level: int) -> None:
        ext = {"offset": self.offsets[body], "group": "g", "delayLevel": level, "originTopic": "T1"}
        answer = self.peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def change(self, key: str, value: str) -> None:
        """Change the setting, and let the tasks work that may have waited for it."""
        answer = self.peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        cleaner = self.desk.broker.store.cleaner
        assert cleaner is not None
        await cleaner.clean()
        while self.desk.broker.delay.round() == 0:
            pass
        await self.desk.settled()

    def read(self, kind: str, offset: int = 0) -> Counter[bytes]:
        """Read the queue of a kind to its end, as a consumer does."""
        topic, queue_id = NAMES[kind]
        found: Counter[bytes] = Counter()
        while True:
            answer = self.peer.answer(self.peer.pull(topic, offset, queueId=queue_id))
            assert answer is not None
            found.update(message.body for message in decode_records(answer.body))
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
            offset = int(answer.ext["nextBeginOffset"])

    def committed(self, queue_id: int) -> int:
        ext = {"consumerGroup": "g", "topic": "T1", "queueId": queue_id}
        return int(self.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext["offset"])

    async def check(self, *kinds: str) -> None:
        """Nothing of these kinds is lost, delivered twice or hidden."""
        for kind in kinds:
            assert self.read(kind) == Counter(bodies(kind)), kind
        assert self.read("half-read", self.committed(1)) == Counter(bodies("half-read")[1:])
        for kind in NAMES:
            for body in bodies(kind):
                viewed = self.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": self.offsets[body]})
                assert [message.body for message in decode_records(viewed.body)] == [body], viewed.remark
            topic = "T1" if kind in kinds or kind == "retried" else SCHEDULE_TOPIC
            ext = {"topic": topic, "key": kind, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
            queried = await self.peer.ask_waiting(RequestCode.QUERY_MESSAGE, ext)
            assert {message.body for message in decode_records(queried.body)} == set(bodies(kind)), queried.remark


def test_every_setting_that_may_change_is_changed_here() -> None:
    """A new one needs its values in the table above."""
    assert DOWN_AND_UP.keys() == CHANGEABLE


@pytest.mark.parametrize("key", sorted(DOWN_AND_UP))
@pytest.mark.parametrize("up_first", [False, True], ids=["down-up", "up-down"])
async def test_a_change_neither_loses_nor_repeats_nor_hides_a_waiting_message(
    tmp_path: Path, key: str, *, up_first: bool
) -> None:
    """The messages were accepted under the former value, so the new one must not judge them again."""
    clock = HandClock(time.time_ns() // 1_000_000)
    world: World = attrs.evolve(real_world(), clock=clock)
    async with open_desk(tmp_path, world) as desk:
        waiting = await Waiting.prepare(desk, clock)
        low, high = DOWN_AND_UP[key]
        first, last = (high, low) if up_first else (low, high)

        for value in (first, last):
            await waiting.change(key, value)
            await waiting.check("ordinary", "half-read", "dead")

        clock.now_ms += DUE_MS
        await waiting.change(key, last)
        await waiting.check(*NAMES)
        if key != "brokerPermission" or not up_first:
            for body in bodies("ordinary"):
                waiting.send_back(body, -1)
