"""A slave's copies of its master's tables: topics, consumer offsets, delay offsets, groups (RocketMQ SlaveSynchronize).

Consumer offsets have a rule of their own. An offset that a consumer committed here while the master was away, and that is
beyond the master's, is kept and sent to the master, so that no group moves back when an old master returns. All other offsets
follow the master, also backwards, because an administrator resets offsets there.
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

RETRY_SECONDS = 1.0
"""Pause, in seconds, after a round in which a table could not be copied. A warning is logged only if the next one fails too,
because a new master refuses until it serves clients."""
PERIOD_SECONDS = 10.0
"""Pause, in seconds, between two rounds of copying."""
CALL_SECONDS = 5.0
"""Time-out of one call to the master, in seconds; then the call counts as failed."""
PUSHES_MAX = 1000
"""How many offsets are sent to the master in one round; the others follow in the next."""

Offsets = dict[tuple[str, str], dict[int, int]]
"""Consumer offsets by (topic, group) and queue id."""


class SlaveTables(Protocol):
    """The tables of a slave's broker."""

    def asking(self) -> None:
        """Note that a table is about to be requested."""
        ...

    def topics_version(self) -> Mapping[str, int]: ...
    def groups_version(self) -> Mapping[str, int]: ...

    async def take_topics(self, stored: Mapping[str, Any]) -> None:
        """Replace the topic table and its version."""
        ...

    def adopt_topics(self) -> None:
        """Add topics that only the records of our log name."""
        ...

    def take_groups(self, stored: Mapping[str, Any]) -> None:
        """Replace the group table and its version."""
        ...

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        """Replace the positions of the delay levels."""
        ...

    def consumer_offsets(self) -> Offsets:
        """Return the current consumer offsets."""
        ...

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        """Overwrite our offsets with these."""
        ...


@attrs.define
class OffsetMerge:
    """Distinguishes offsets that were committed here from those copied from the master. Pure."""

    _settled: dict[tuple[str, str, int], int] | None = None
    """The offsets of our table without commits of consumers here; None before the master's were copied for the first time."""

    def merge(self, own: Offsets, masters: Offsets) -> tuple[Offsets, Offsets]:
        """Compare the tables; returns the offsets to overwrite here, and those to send to the master."""
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
                else:  # deleted there, or read from an old file here: it is no commit, now or later
                    settled[*key, queue_id] = held
        self._settled = settled
        return put, push

    def handed(self, key: tuple[str, str], queue_id: int, offset: int) -> None:
        """Record that an offset was sent to the master, whose own value counts from now on even if it is smaller.

        A master that has lost messages accepts no offset beyond the end of its queue. If the offset was sent again and again,
        it would be inside the queue one day, and the group would skip the messages stored there meanwhile.
        """
        if self._settled is not None:
            self._settled[*key, queue_id] = offset

    def _was_committed_here(self, key: tuple[str, str], queue_id: int, held: int) -> bool:
        # Before the first copy no offset counts as a commit, because our file may be older than a reset at the master.
        return self._settled is not None and self._settled.get((*key, queue_id)) != held


@attrs.define(eq=False, repr=False)
class ConfigSync:
    """Copies the tables of the master periodically."""

    tables: SlaveTables
    network: Network
    secret: bytes = attrs.field(default=b"", repr=False)
    """The secret; if it is set, only tables of a master that proves to know it are accepted."""
    secrets: Randomness | None = None
    """Unpredictable randomness for nonces; required with a secret."""
    period_seconds: float = PERIOD_SECONDS
    may_take: Callable[[], bool] = lambda: True
    """Whether this slave's log follows the master's. The tables of a master whose log is refused belong to another history."""
    master: Address | None = None
    rounds: int = 0
    """How many rounds have copied every table."""
    _failing: set[str] = attrs.field(factory=set[str])
    """The tables that failed in the last round."""
    _logged: set[str] = attrs.field(factory=set[str])
    """The failed tables of the last warning; another warning is logged only when they change."""
    _merge: OffsetMerge = attrs.field(factory=OffsetMerge)
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def follow(self, master: Address | None) -> None:
        """Set the master's address for clients; a change starts a round at once."""
        if master != self.master:
            self.master = master
            self._wake.set()

    def ask_now(self) -> None:
        """Begin the next round now: `may_take` may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the tables equal to the master's until cancelled."""
        while True:
            if self.master is not None and self.may_take():
                await self.round(self.master)
            else:
                self.tables.adopt_topics()
            self._wake = trio.Event()
            with trio.move_on_after(min(self.period_seconds, RETRY_SECONDS) if self._failing else self.period_seconds):
                await self._wake.wait()

    async def round(self, master: Address) -> None:
        """Copy every table once; a table that cannot be copied stays unchanged."""
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
                    except Exception as error:  # noqa: BLE001 - no answer of a master may end its slave
                        failed[name] = str(error) if isinstance(error, _Unanswered | _Unproved | JsonError) else fault_of(error)
        except* RemotingError as group:
            failed["connection"] = str(group.exceptions[0])
        if failed:  # messages of a topic that the master has not sent yet can be read only here now
            self.tables.adopt_topics()
        if not failed:
            self._logged = set()
        elif self._failing and failed.keys() != self._logged:  # not the first round: a new master refuses until it serves
            log.warning("slave_sync_failed", master=str(master), **failed)
            self._logged = set(failed)
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
            await self.tables.take_topics(stored)
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
        self.tables.asking()
        nonce = None
        if self.secret:
            assert self.secrets is not None, "a secret needs nonces"
            nonce = self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big").hex()
        ext = wire_fields({"acceptStandardJsonOnly": True, "ofMaster": True, NONCE_FIELD: nonce})
        answer = await channel.call(RemotingCommand(code, ext), CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise _Unanswered(f"code {answer.code}: {answer.remark}")
        if nonce is not None and not is_proved(self.secret, nonce, code, answer.body, answer.ext.get(PROOF_FIELD, "")):
            raise _Unproved(f"the answer to {code.name} does not prove that its sender knows haSecret; it was ignored")
        return _table_of(answer.body, code)


class _Unanswered(Exception):
    """The master answered with a code other than success."""


class _Unproved(Exception):
    """The node that answered does not prove that it knows the secret."""


def _table_of(body: bytes, code: RequestCode) -> dict[str, Any]:
    stored: Any = loads(body) if body else {}
    if not isinstance(stored, dict):
        raise TypeError(f"the answer to {code.name} is not a JSON object")
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
