"""A slave's copies of its master's tables: topics, consumer offsets, delay offsets, groups (RocketMQ SlaveSynchronize).

Consumer offsets follow one rule of ours. What a consumer has committed here while the master was away, and what is further
than the master's own offset, stays and is handed to the master: neither jumps back when an old master returns. Everything
else follows the master, backwards too, for that is how offsets are reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import attrs
import trio

from ...message.errors import JsonError
from ...message.json import loads
from ...message.numbers import int_of, long_of
from ...remoting.channel import Channel, connected
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand, wire_fields
from ...remoting.errors import CallTimeout, RemotingError
from ...world.events import get_logger
from ...world.logs import fault_of
from ...world.network import Address, Network
from ...world.randomness import Randomness
from ...world.slices import in_slices
from .table_proofs import NONCE_FIELD, NONCE_SIZE, PROOF_FIELD, is_proved

log = get_logger(__name__)

PERIOD_SECONDS = 10.0
CALL_SECONDS = 5.0
PUSHES_MAX = 1000
"""Offsets handed to the master in one round; the rest follow in the next."""

Offsets = dict[tuple[str, str], dict[int, int]]
"""(topic, group) → queue → offset."""


class SlaveTables(Protocol):
    """The tables of a slave's broker."""

    def topics_version(self) -> Mapping[str, int]: ...
    def groups_version(self) -> Mapping[str, int]: ...

    def take_topics(self, stored: Mapping[str, Any]) -> None:
        """Replace the topic table and its version."""
        ...

    def adopt_topics(self) -> None:
        """Take up topics that only our log tells of."""
        ...

    def take_groups(self, stored: Mapping[str, Any]) -> None:
        """Replace the group table and its version."""
        ...

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        """Replace the positions of the delay levels."""
        ...

    def consumer_offsets(self) -> Offsets:
        """The offsets as they are now."""
        ...

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        """Put these over our own."""
        ...


@attrs.define
class OffsetMerge:
    """Tells what was committed here from what the master had told us; pure."""

    _settled: dict[tuple[str, str, int], int] | None = None
    """What our table holds as long as nobody commits here; None before the master has told us anything."""

    def merge(self, own: Offsets, masters: Offsets) -> tuple[Offsets, Offsets]:
        """Compare the tables; returns what to put over our own, and what to hand to the master."""
        put: Offsets = {}
        push: Offsets = {}
        settled = {(*key, queue_id): offset for key, queues in masters.items() for queue_id, offset in queues.items()}
        for key, queues in masters.items():
            mine = own.get(key, {})
            for queue_id, offset in queues.items():
                held = mine.get(queue_id)
                if held is not None and held > offset and self._was_committed_here(key, queue_id, held):
                    push.setdefault(key, {})[queue_id] = held
                elif held != offset:
                    put.setdefault(key, {})[queue_id] = offset
        for key, queues in own.items():
            theirs = masters.get(key, {})
            for queue_id, held in queues.items():
                if queue_id in theirs:
                    continue
                if self._was_committed_here(key, queue_id, held):
                    push.setdefault(key, {})[queue_id] = held
                else:  # deleted there, or from an old file of ours: no commit, now or in a later round
                    settled[*key, queue_id] = held
        self._settled = settled
        return put, push

    def handed(self, key: tuple[str, str], queue_id: int, offset: int) -> None:
        """The master was given an offset: what it makes of it counts from now on, also if it is less.

        A master that has lost messages takes no offset behind the end of its queue. Handed over again and again, the offset
        would one day be inside the queue, and the group would pass over the messages that have come there meanwhile.
        """
        if self._settled is not None:
            self._settled[*key, queue_id] = offset

    def _was_committed_here(self, key: tuple[str, str], queue_id: int, held: int) -> bool:
        # Before the master has told us anything we know of no commit: our file may simply be older than a reset there.
        return self._settled is not None and self._settled.get((*key, queue_id)) != held


@attrs.define(eq=False)
class ConfigSync:
    """Asks the master for its tables, again and again."""

    tables: SlaveTables
    network: Network
    secret: bytes = attrs.field(default=b"", repr=False)
    """With a secret, only tables of a master that proves to share it are taken."""
    secrets: Randomness | None = None
    """Unpredictable: nonces come from it. Needed where there is a secret."""
    period_seconds: float = PERIOD_SECONDS
    master: Address | None = None
    rounds: int = 0
    """Whole rounds so far in which every table came."""
    _failing: set[str] = attrs.field(factory=set[str])
    """What failed in the last round; said once as long as it stays the same."""
    _merge: OffsetMerge = attrs.field(factory=OffsetMerge)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def follow(self, master: Address | None) -> None:
        """Set the master's address for clients; a new one is asked at once."""
        if master != self.master:
            self.master = master
            self._wake.set()

    async def run(self) -> None:
        """Keep the tables like the master's until cancelled."""
        while True:
            if self.master is not None:
                await self.round(self.master)
            self._wake = trio.Event()
            with trio.move_on_after(self.period_seconds):
                await self._wake.wait()

    async def round(self, master: Address) -> None:
        """Ask for every table once; one that does not come leaves ours as it was."""
        failed: dict[str, str] = {}
        try:
            async with connected(master, network=self.network) as channel:
                for name, step in self._steps():
                    try:
                        await step(channel)
                    except RemotingError as error:
                        if not isinstance(error, CallTimeout):
                            raise
                        failed[name] = str(error)
                    except Exception as error:  # noqa: BLE001 - whatever a master says must not end its slave
                        failed[name] = str(error) if isinstance(error, _Unanswered | _Unproved | JsonError) else fault_of(error)
        except* RemotingError as group:
            failed["connection"] = str(group.exceptions[0])
        if failed:  # what the log has of a topic that the master has not come to tell of can be read nowhere else now
            self.tables.adopt_topics()
        if failed and failed.keys() != self._failing:
            log.warning("slave_sync_failed", master=str(master), **failed)
        self._failing = set(failed)
        self.rounds += not failed

    def _steps(self) -> tuple[tuple[str, Callable[[Channel], Any]], ...]:
        return (
            ("topics", self._topics),
            ("consumer_offsets", self._consumer_offsets),
            ("delay_offsets", self._delay_offsets),
            ("groups", self._groups),
        )

    async def _topics(self, channel: Channel) -> None:
        stored = await self._ask(channel, RequestCode.GET_ALL_TOPIC_CONFIG)
        if _differs(stored, self.tables.topics_version()):
            self.tables.take_topics(stored)
            log.info("topics_taken_over", topics=len(stored["topicConfigTable"]))

    async def _groups(self, channel: Channel) -> None:
        stored = await self._ask(channel, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        if _differs(stored, self.tables.groups_version()):
            self.tables.take_groups(stored)
            log.info("groups_taken_over", groups=len(stored["subscriptionGroupTable"]))

    async def _delay_offsets(self, channel: Channel) -> None:
        self.tables.take_delay_offsets(await self._ask(channel, RequestCode.GET_ALL_DELAY_OFFSET))

    async def _consumer_offsets(self, channel: Channel) -> None:
        masters = await _offsets_of(await self._ask(channel, RequestCode.GET_ALL_CONSUMER_OFFSET))
        put, push = self._merge.merge(self.tables.consumer_offsets(), masters)
        if put:
            self.tables.put_consumer_offsets(put)
        handed = 0
        for (topic, group), queues in push.items():
            for queue_id, offset in queues.items():
                if handed < PUSHES_MAX:
                    answer = await channel.call(_commit(topic, group, queue_id, offset), CALL_SECONDS)
                    if answer.code == ResponseCode.SUCCESS:
                        self._merge.handed((topic, group), queue_id, offset)
                    handed += 1
        if handed:
            log.info("offsets_handed_to_master", offsets=handed)

    async def _ask(self, channel: Channel, code: RequestCode) -> dict[str, Any]:
        nonce = None
        if self.secret:
            assert self.secrets is not None, "a secret needs nonces"
            nonce = self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big").hex()
        ext = wire_fields({"acceptStandardJsonOnly": True, "ofMaster": True, NONCE_FIELD: nonce})
        answer = await channel.call(RemotingCommand(code, ext), CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise _Unanswered(f"code {answer.code}: {answer.remark}")
        if nonce is not None and not is_proved(self.secret, nonce, code, answer.body, answer.ext.get(PROOF_FIELD, "")):
            raise _Unproved(f"the answer to {code.name} does not prove that its sender knows haSecret; it was not taken")
        return _table_of(answer.body, code)


class _Unanswered(Exception):
    """The master answered with a code other than success."""


class _Unproved(Exception):
    """Whoever answered does not share our secret."""


def _table_of(body: bytes, code: RequestCode) -> dict[str, Any]:
    stored: Any = loads(body) if body else {}
    if not isinstance(stored, dict):
        raise TypeError(f"the answer to {code.name} is no JSON object")
    return cast("dict[str, Any]", stored)


def _differs(stored: Mapping[str, Any], own: Mapping[str, int]) -> bool:
    version: Mapping[str, Any] = stored["dataVersion"]
    return any(long_of(version.get(key) or 0) != own.get(key, 0) for key in ("counter", "timestamp", "stateVersion"))


async def _offsets_of(stored: Mapping[str, Any]) -> Offsets:
    table: Mapping[str, Mapping[str, Any]] = stored.get("offsetTable") or {}
    offsets: Offsets = {}
    async for piece in in_slices(table.items()):
        for key, queues in piece:
            topic, separator, group = key.partition("@")
            if separator:
                offsets[topic, group] = {int_of(queue_id): long_of(offset) for queue_id, offset in queues.items()}
    return offsets


def _commit(topic: str, group: str, queue_id: int, offset: int) -> RemotingCommand:
    return RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"topic": topic, "consumerGroup": group, "queueId": str(queue_id), "commitOffset": str(offset)},
    )
