"""A slave's copies of its master's tables: topics, consumer offsets, delay offsets, groups (RocketMQ SlaveSynchronize).

A master of ours has its tables in the log, from which the slave derives them. Then nothing is copied, unless the slave's tables
came from another log; only what consumers have committed here while the master was away is sent to it. An Apache master's
tables are copied in each round.

Consumer offsets have a rule of their own. An offset that a consumer committed here while the master was away, and that is
beyond the master's, is kept and sent to the master, so that no group moves back when an old master returns. All other offsets
follow the master, also backwards, because an administrator resets offsets there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
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
from ...remoting.signature import Credentials
from ...world.events import get_logger
from ...world.logs import fault_of
from ...world.network import Address, Network
from ...world.randomness import Randomness
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
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

PART_BYTES = 128 * 1024
"""How much JSON of the master's offsets is read in one turn of the event loop, which takes about 5 ms."""
TABLES_APPENDED = "tablesAppended"
"""Our field in the answer to 45: the master appends changes of its tables to its log, even if that has not all of them yet."""
TABLES_LOG_OFFSET = "tablesLogOffset"
"""Our own key in a master's answer about delayed messages: its tables have all events before this offset, no other change."""
ONLY_FORWARD_FIELD = "onlyForward"
"""Our own field in a commit that a slave hands over: the group may have come further at the master meanwhile."""
ONLY_LOGGED_FIELD = "onlyLogged"
"""Our own field in a question for offsets: commits that are not in the master's log yet are left out, as it may lose them."""
_OFFSET_TABLE = b'"offsetTable":{'

_Commit = tuple[str, str, int, int]
"""Topic, group, queue id and offset."""
Offsets = dict[tuple[str, str], dict[int, int]]
"""Consumer offsets by (topic, group) and queue id."""


class SlaveTables(Protocol):
    """The tables of a slave's broker."""

    @property
    def in_log(self) -> bool:
        """Whether the tables are what the log says."""
        ...

    def asking(self) -> None:
        """Note that a table is about to be requested."""
        ...

    def heard_of_master(self, *, appends: bool) -> None:
        """Note whether the master appends its changes of tables to the log, as its answer says."""
        ...

    async def take_logged_offsets(self, offsets: Offsets) -> None:
        """Replace all offsets by those of a master whose tables are in its log, except commits here that are ahead of them."""
        ...

    def copied(self, end: int) -> None:
        """Note that all tables are copied from a master whose own ones have all events before `end`, and no other change."""
        ...

    def commits_here(self, masters_end: float) -> list[tuple[str, str, int, int]]:
        """Topic, group, queue id and offset of what consumers have committed here, ahead of the log.

        Args:
            masters_end: up to where the master's log is derived, if what it was handed earlier is before that, else infinity.
        """
        ...

    def handed(self, topic: str, group: str, queue_id: int) -> None:
        """Note that the master has such a commit, whose own value counts at the next round even if it is smaller."""
        ...

    def topics_version(self) -> Mapping[str, int]: ...
    def groups_version(self) -> Mapping[str, int]: ...

    async def take_topics(self, stored: Mapping[str, Any]) -> None:
        """Replace the topic table and its version."""
        ...

    async def adopt_topics(self) -> None:
        """Add topics that only the records of our log name."""
        ...

    async def take_groups(self, stored: Mapping[str, Any]) -> None:
        """Replace the group table and its version."""
        ...

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        """Replace the positions of the delay levels."""
        ...

    def take_access(self, stored: Mapping[str, Any]) -> None:
        """Replace users and rights."""
        ...

    def consumer_offsets(self) -> Mapping[tuple[str, str], dict[int, int]]:
        """Return the current consumer offsets."""
        ...

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        """Overwrite our offsets with these."""
        ...


@attrs.define
class OffsetMerge:
    """Distinguishes offsets that were committed here from those copied from the master. Pure.

    The tables are merged in parts, between which consumers may commit here. Invariant: what is settled about a key is what its
    own last merge saw, even if the merge of other keys was not finished.
    """

    _settled: Offsets = attrs.field(factory=Offsets)
    """The offsets of our table without commits of consumers here."""
    _merged: Offsets = attrs.field(factory=Offsets)
    """The same for the keys that were merged since the last `complete`."""
    _is_complete: bool = False
    """Whether the master's whole table was merged once. Before that no offset counts as a commit, because our file may be
    older than a reset at the master."""

    def merge(
        self, own: Mapping[tuple[str, str], dict[int, int]], masters: Offsets, keys: Iterable[tuple[str, str]]
    ) -> tuple[Offsets, Offsets]:
        """Compare these keys of the tables; returns the offsets to overwrite here, and those to send to the master."""
        put: Offsets = {}
        push: Offsets = {}
        for key in keys:
            mine, theirs = own.get(key, {}), masters.get(key, {})
            before = self._settled.pop(key, None) or self._merged.get(key, {})
            settled = self._merged[key] = dict(theirs)
            if mine == theirs:
                continue
            pushed: dict[int, int] = {}
            for queue_id, held in mine.items():
                is_ahead = queue_id not in theirs or held > theirs[queue_id]
                if is_ahead and self._is_complete and before.get(queue_id) != held:  # it was committed here
                    pushed[queue_id] = held
                elif queue_id not in theirs:  # deleted there, or read from an old file here: it is no commit, now or later
                    settled[queue_id] = held
            if pushed:
                push[key] = pushed
            if news := {at: offset for at, offset in theirs.items() if at not in pushed and mine.get(at) != offset}:
                put[key] = news
        return put, push

    def complete(self) -> None:
        """Record that all keys of both tables were merged; what was settled about others is forgotten."""
        self._settled, self._merged, self._is_complete = self._merged, Offsets(), True

    def handed(self, key: tuple[str, str], queue_id: int, offset: int) -> None:
        """Record that an offset was sent to the master, whose own value counts from now on even if it is smaller.

        A master that has lost messages accepts no offset beyond the end of its queue. If the offset was sent again and again,
        it would be inside the queue one day, and the group would skip the messages stored there meanwhile.
        """
        self._settled[key][queue_id] = offset


@attrs.define(eq=False, repr=False)
class ConfigSync:
    """Copies the tables of the master periodically."""

    tables: SlaveTables
    network: Network
    secret: bytes = attrs.field(default=b"", repr=False)
    """The secret; if it is set, only tables of a master that proves to know it are accepted."""
    secrets: Randomness | None = None
    """Unpredictable randomness for nonces; required with a secret."""
    credentials: Credentials | None = None
    """What signs the requests, for a master with access control."""
    period_seconds: float = PERIOD_SECONDS
    may_take: Callable[[], bool] = lambda: True
    """Whether this slave's log follows the master's. The tables of a master whose log is refused belong to another history."""
    master: Address | None = None
    rounds: int = 0
    """How many rounds have copied every table."""
    _masters_end: int | None = None
    """`TABLES_LOG_OFFSET` of the master's last answer; None if its tables are not in its log."""
    _handed_at: float = -inf
    """When the master was last handed commits that consumers had made here."""
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
                await self.tables.adopt_topics()
            self._wake = trio.Event()
            with trio.move_on_after(min(self.period_seconds, RETRY_SECONDS) if self._failing else self.period_seconds):
                await self._wake.wait()

    async def round(self, master: Address) -> None:
        """Copy every table once, if they do not come with the log; a table that cannot be copied stays unchanged."""
        failed: dict[str, str] = {}
        try:
            async with connected(master, network=self.network, credentials=self.credentials) as channel:
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
            await self.tables.adopt_topics()
        if not failed:
            self._logged = set()
        elif self._failing and failed.keys() != self._logged:  # not the first round: a new master refuses until it serves
            log.warning("slave_sync_failed", master=str(master), **failed)
            self._logged = set(failed)
        self._failing = set(failed)
        self.rounds += not failed

    def _steps(self) -> Iterator[tuple[str, Callable[[Channel], Any]]]:
        yield "delay_offsets", self._delay_offsets
        if self._masters_end is not None and self.tables.in_log:
            yield "commits", self._hand_commits
            return
        yield "topics", self._topics
        yield "consumer_offsets", self._consumer_offsets
        yield "groups", self._groups
        if self._masters_end is not None:
            yield "access", self._access
            yield "log_offset", self._finish_copy

    async def _topics(self, channel: Channel) -> None:
        stored = await self._ask(channel, RequestCode.GET_ALL_TOPIC_CONFIG)
        if self._masters_end is not None or _differs(stored, self.tables.topics_version()):
            await self.tables.take_topics(stored)
            log.info("topics_taken_over", topics=len(stored["topicConfigTable"]))

    async def _groups(self, channel: Channel) -> None:
        stored = await self._ask(channel, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        if self._masters_end is not None or _differs(stored, self.tables.groups_version()):
            await self.tables.take_groups(stored)
            log.info("groups_taken_over", groups=len(stored["subscriptionGroupTable"]))

    async def _access(self, channel: Channel) -> None:
        try:
            stored = await self._ask(channel, RequestCode.GET_ALL_ACCESS)
        except _Unanswered as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return  # a master of an older version has no users
            raise
        self.tables.take_access(stored)

    async def _delay_offsets(self, channel: Channel) -> None:
        stored = await self._ask(channel, RequestCode.GET_ALL_DELAY_OFFSET)
        end = stored.pop(TABLES_LOG_OFFSET, None)
        self._masters_end = None if end is None else long_of(end)
        self.tables.heard_of_master(appends=stored.pop(TABLES_APPENDED, None) is True)
        if self._masters_end is None or not self.tables.in_log:
            self.tables.take_delay_offsets(stored)

    async def _finish_copy(self, channel: Channel) -> None:
        """Learn up to where the log has to be derived until the copies are what it says."""
        end = (await self._ask(channel, RequestCode.GET_ALL_DELAY_OFFSET)).get(TABLES_LOG_OFFSET)
        if end is not None:
            self.tables.copied(long_of(end))

    async def _hand_commits(self, channel: Channel) -> None:
        assert self._masters_end is not None, "this step is for masters whose tables are in their logs"
        is_logged = trio.current_time() - self._handed_at >= RETRY_SECONDS  # a master appends commits within less
        handed = await self._hand(channel, self.tables.commits_here(self._masters_end if is_logged else inf))
        for topic, group, queue_id, _ in handed:
            self.tables.handed(topic, group, queue_id)
        if handed:
            self._handed_at = trio.current_time()

    async def _hand(self, channel: Channel, commits: Iterable[_Commit]) -> list[_Commit]:
        """Send commits to the master, as many as one round may; returns those that it has accepted."""
        handed: list[_Commit] = []
        for commit in islice(commits, PUSHES_MAX):
            answer = await channel.call(_commit(*commit), CALL_SECONDS)
            if answer.code == ResponseCode.SUCCESS:
                handed.append(commit)
        if handed:
            log.info("offsets_handed_to_master", offsets=len(handed))
        return handed

    async def _consumer_offsets(self, channel: Channel) -> None:
        only_logged = self._masters_end is not None
        body = await self._ask_raw(channel, RequestCode.GET_ALL_CONSUMER_OFFSET, only_logged=only_logged)
        masters = await _offsets_of(body)
        if only_logged:
            await self.tables.take_logged_offsets(masters)
            return
        own, push = self.tables.consumer_offsets(), Offsets()
        table = (*masters.items(), *((key, queues) for key, queues in own.items() if key not in masters))
        async for piece in in_slices(table, ROWS_PER_SLICE, rows_of):
            put, pushed = self._merge.merge(own, masters, (key for key, _ in piece))
            if put:
                self.tables.put_consumer_offsets(put)
            push |= pushed
        self._merge.complete()
        rows = ((*key, queue_id, offset) for key, queues in push.items() for queue_id, offset in queues.items())
        for topic, group, queue_id, offset in await self._hand(channel, rows):
            self._merge.handed((topic, group), queue_id, offset)

    async def _ask(self, channel: Channel, code: RequestCode) -> dict[str, Any]:
        return _table_of(await self._ask_raw(channel, code), code)

    async def _ask_raw(self, channel: Channel, code: RequestCode, *, only_logged: bool = False) -> bytes:
        """The body of the master's answer, which was proved if there is a secret."""
        self.tables.asking()
        nonce = None
        if self.secret:
            assert self.secrets is not None, "a secret needs nonces"
            nonce = self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big").hex()
        fields = {"acceptStandardJsonOnly": True, "ofMaster": True, NONCE_FIELD: nonce}
        ext = wire_fields({**fields, ONLY_LOGGED_FIELD: True if only_logged else None})
        answer = await channel.call(RemotingCommand(code, ext), CALL_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise _Unanswered(answer.code, answer.remark)
        if nonce is not None and not is_proved(self.secret, nonce, code, answer.body, answer.ext.get(PROOF_FIELD, "")):
            raise _Unproved(f"the answer to {code.name} does not prove that its sender knows haSecret; it was ignored")
        return answer.body


class _Unanswered(Exception):
    """The master answered with a code other than success."""

    def __init__(self, code: int, remark: str | None) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


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


async def _offsets_of(body: bytes) -> Offsets:
    """Read the master's offsets in several turns of the event loop: the JSON alone of a full table takes 200 ms.

    Raises:
        JsonError, TypeError, ValueError: it is not a table of tables of numbers.
    """
    offsets: Offsets = {}
    try:
        for part in _parts_of(body):
            offsets |= _keyed(loads(part))
            await trio.lowlevel.checkpoint()
    except JsonError:  # not written as expected, so read at once
        stored = _table_of(body, RequestCode.GET_ALL_CONSUMER_OFFSET)
        return _keyed(stored.get("offsetTable") or {})
    return offsets


def _parts_of(body: bytes) -> Iterator[bytes]:
    """Cut a table that is the last member of the body into JSON objects with a part of its entries each.

    Names contain no braces and the tables of queues no others, so `},"` is the border of two entries. If the body is not
    written so, the parts are no JSON.
    """
    at = body.find(_OFFSET_TABLE) + len(_OFFSET_TABLE)
    end = len(body.rstrip()) - 2  # the braces of table and body
    if at < len(_OFFSET_TABLE) or body[end : end + 2] != b"}}":
        yield b""
        return
    while at < end:
        border = body.find(b'},"', at + PART_BYTES, end)
        stop = border + 1 if border >= 0 else end
        yield b"{%b}" % body[at:stop]
        at = stop + 1


def _keyed(table: Mapping[str, Mapping[str, Any]]) -> Offsets:
    offsets: Offsets = {}
    for key, queues in table.items():
        topic, separator, group = key.partition("@")
        if separator:
            offsets[topic, group] = {int_of(queue_id): long_of(offset) for queue_id, offset in queues.items()}
    return offsets


def _commit(topic: str, group: str, queue_id: int, offset: int) -> RemotingCommand:
    return RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "topic": topic,
            "consumerGroup": group,
            "queueId": str(queue_id),
            "commitOffset": str(offset),
            ONLY_FORWARD_FIELD: "true",
        },
    )
