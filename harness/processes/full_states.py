"""`python -m harness.processes.full_states`: a broker whose tables are full, and requests that use them.

`FullStates.fill` makes the states: many topics and queues with messages, offsets, members of groups, groups of members, a wide
topic with groups that lag, index entries of one key, held pulls, leases, deletions, users and numbered sends. `ACTS` are
requests and events whose work could grow with a table. The command carries out each act alone and prints the longest turn and
the longest pass of the event loop during it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgermq.remoting.channel import Channel, open_channel
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.network import Address, TcpNetwork

from .full_requests import answer_as_client, batch_item, command, heartbeat, numbered_batch, scraped, user_with_right
from .malformed import frame, json_header
from .report import Report, close_directory, print_line
from .requests import SEND_FIELDS
from .servers import running_broker, running_namesrv

CALL_SECONDS = 120.0
SETTLE_SECONDS = 3.0
"""How long turns are watched after an act was answered, for what it has started."""
ONEWAY = 2
KEEP_SECONDS = 35.0
"""How often members send heartbeats and leases are renewed."""
GROUPS_OF_OFFSETS = 5
LAGGING_GROUPS = 3
PULLS_OF_CONNECTION = 16_000
CALLS_AT_ONCE = 200
"""How many heartbeats and deletions are sent together."""
LEASES_OF_REQUEST = 2_500
SENDS_OF_PRODUCER = 8
MEMBERS_GROUP, LEASE_GROUP, LAG_GROUP, PULL_TOPIC, WIDE_TOPIC, KEY_TOPIC = (
    "full-members",
    "full-leases",
    "full-lag",
    "full-pulls",
    "full-wide",
    "full-keys",
)
SETTINGS: Mapping[str, object] = {
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
    "mappedFileSizeConsumeQueue": 6_000,
    "useServerSideResetOffset": "false",
}
"""Settings of a broker that holds the full states: one index file for all entries of a key, and small files of queues."""


def with_metrics(port: int) -> Mapping[str, object]:
    """The settings of a broker that serves its metrics at a port."""
    return {"metricsExporterType": "PROM", "metricsPromExporterPort": port}


@attrs.frozen(kw_only=True)
class Sizes:
    """How many entries each state has."""

    topics: int = 10_000
    queues: int = 8
    members: int = 4_000
    groups: int = 1_000
    peers: int = 20
    """The connections that each have one member of all `groups`."""
    wide: int = 16_384
    keyed: int = 300_000
    pulls: int = 190_000
    leases: int = 100_000
    deletions: int = 2_000
    users: int = 2_500
    """Users, each with one right; more than some 3,000 rights do not fit their table."""
    producers: int = 16_384
    """Producers whose sends are numbered, each with `SENDS_OF_PRODUCER` sends: as many as the table of sends keeps."""

    def divided(self, by: int) -> Sizes:
        """The same states with a fraction of the entries."""
        return Sizes(**{name: max(size // by, 2) for name, size in attrs.asdict(self).items()})


@attrs.define(eq=False)
class FullStates:
    """A filled broker, and the connections that keep it full."""

    address: Address
    nursery: trio.Nursery
    sizes: Sizes = attrs.field(factory=Sizes)
    report: Report = lambda _: None
    metrics: Address | None = None
    """Where the broker serves its metrics, which one act scrapes."""
    control: Channel = attrs.field(init=False)
    """For requests that fill tables and for the acts."""
    members: Channel = attrs.field(init=False)
    peers: list[Channel] = attrs.field(factory=list[Channel])
    pullers: list[Channel] = attrs.field(factory=list[Channel])
    are_leased: bool = False
    new_producers: int = 0
    """How many producers have been added by acts."""
    deleted: int = 0
    """How many of the topics have been deleted by acts."""
    _began_ms: int = 0

    async def fill(self) -> None:
        """Make all states, one after the other."""
        self.control, self.members = await self._open(), await self._open()
        self.nursery.start_soon(self._keep)
        for step in (
            self.fill_topics,
            self.fill_offsets,
            self.fill_members,
            self.fill_peers,
            self.fill_keys,
            self.fill_leases,
            self.fill_users,
            self.fill_producers,
            self.fill_deletions,
            self.fill_pulls,
        ):
            began = time.monotonic()
            await step()
            self.report(f"{step.__name__}: {time.monotonic() - began:.0f} s")

    async def _open(self) -> Channel:
        return await open_channel(
            self.address, network=TcpNetwork(), nursery=self.nursery, on_request=answer_as_client, connect_seconds=60
        )

    async def call(self, code: int, fields: Mapping[str, object] | None = None, body: Any = None) -> RemotingCommand:
        """Send a request on the connection for acts and wait for its answer; report a refusal."""
        return self._checked(code, await self.control.call(command(code, fields, body), CALL_SECONDS))

    def _checked(self, code: int, answer: RemotingCommand) -> RemotingCommand:
        if answer.code != ResponseCode.SUCCESS:
            self.report(f"request {code} was answered {answer.code}: {answer.remark}")
        return answer

    async def _post_all(self, channel: Channel, frames: Iterable[bytes]) -> None:
        """Send oneway requests, and wait until they have been handled."""
        for at, each in enumerate(frames):
            await channel.post((each,))
            if at % 2000 == 1999:
                await channel.call(command(RequestCode.GET_MIN_OFFSET, {"topic": "x", "queueId": 0}), CALL_SECONDS)
        await channel.call(command(RequestCode.GET_MIN_OFFSET, {"topic": "x", "queueId": 0}), CALL_SECONDS)

    async def _topics(self, names: Sequence[str], queues: int) -> None:
        for start in range(0, len(names), 1000):
            rows = [
                {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues} for name in names[start : start + 1000]
            ]
            answer = await self.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": rows})
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def fill_topics(self) -> None:
        """Create the topics, and put a message into each of their queues."""
        sizes = self.sizes
        await self._topics([f"full-{n}" for n in range(sizes.topics)], sizes.queues)
        await self._topics([PULL_TOPIC, KEY_TOPIC], 1)
        await self._topics([WIDE_TOPIC], sizes.wide)
        places = self._queues()
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2  # the broker keeps the last file of each queue open
        places = places[:: max(-(-len(places) // files_max), 1)]
        self.report(f"{len(places)} queues with messages")
        await self._send(places)

    async def _send(self, places: Iterable[tuple[str, int]]) -> None:
        """Put a message into each of these queues."""
        send = (
            frame(json_header(RequestCode.SEND_MESSAGE_V2, {**SEND_FIELDS, "b": topic, "e": str(queue)}, 1, ONEWAY), b"message")
            for topic, queue in places
        )
        await self._post_all(self.control, send)

    def _queues(self) -> list[tuple[str, int]]:
        sizes = self.sizes
        queues = [(f"full-{n}", queue) for n in range(sizes.topics) for queue in range(sizes.queues)]
        return queues + [(WIDE_TOPIC, queue) for queue in range(sizes.wide)]

    async def fill_offsets(self) -> None:
        """Commit an offset on every queue for one group, and clone it for others."""
        await self._lag()  # first, because a scrape names the first 20,000 series of a metric alone
        await self._commit("full-g0", self._queues(), 1)
        for n in range(1, GROUPS_OF_OFFSETS):
            await self.clone(f"full-g{n}")
        await self.clone(MEMBERS_GROUP, WIDE_TOPIC)

    async def _lag(self) -> None:
        """Let groups lag behind the message in each queue of the wide topic."""
        wide = ((WIDE_TOPIC, queue) for queue in range(self.sizes.wide))
        await self._commit(f"{LAG_GROUP}-0", wide, 0)
        for n in range(1, LAGGING_GROUPS):
            await self.clone(f"{LAG_GROUP}-{n}", WIDE_TOPIC, f"{LAG_GROUP}-0")

    async def _commit(self, group: str, places: Iterable[tuple[str, int]], offset: int) -> None:
        commit = (
            frame(
                json_header(
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)},
                    1,
                    ONEWAY,
                )
            )
            for topic, queue in places
        )
        await self._post_all(self.control, commit)

    async def clone(self, group: str, topic: str = "", source: str = "full-g0") -> None:
        """Give a group the offsets of another one."""
        fields = {"srcGroup": source, "destGroup": group, "topic": topic, "offline": "true"}
        await self.call(RequestCode.CLONE_GROUP_OFFSET, fields)

    async def fill_members(self) -> None:
        """Connect the members of one group, all on one connection."""
        for start in range(0, self.sizes.members, CALLS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for n in range(start, min(start + CALLS_AT_ONCE, self.sizes.members)):
                    nursery.start_soon(self._add_member, n)

    async def _add_member(self, number: int) -> None:
        request = heartbeat(f"member-{number}", [MEMBERS_GROUP], [WIDE_TOPIC, "full-0"])
        self._checked(request.code, await self.members.call(request, CALL_SECONDS))

    async def fill_peers(self) -> None:
        """Connect peers, each with one member of every group."""
        for _ in range(self.sizes.peers):
            await self.add_peer()

    async def add_peer(self) -> None:
        """Connect one more peer with a member of every group."""
        peer = await self._open()
        self.peers.append(peer)
        groups = [f"full-of-peers-{n}" for n in range(self.sizes.groups)]
        request = heartbeat(f"peer-{id(peer)}", groups, ["full-1"])
        self._checked(request.code, await peer.call(request, CALL_SECONDS))

    async def fill_keys(self) -> None:
        """Send messages with the same key; only the first was stored at the time for which acts query."""
        self._began_ms = time.time_ns() // 1_000_000
        item = batch_item(b"KEYS\x01k\x02")
        left = self.sizes.keyed
        while left > 0:
            count = min(left, 1000)
            fields = {**SEND_FIELDS, "b": KEY_TOPIC, "e": "0", "m": "true"}
            answer = await self.call(RequestCode.SEND_BATCH_MESSAGE, fields, item * count)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            left -= count

    async def fill_leases(self) -> None:
        """Lease queues of the wide topic to one client in several groups."""
        for lock in self._locks():
            self._checked(lock.code, await self.control.call(lock, CALL_SECONDS))
        self.are_leased = True

    def _locks(self) -> Iterator[RemotingCommand]:
        left, n = self.sizes.leases, 0
        while left > 0:
            count = min(left, LEASES_OF_REQUEST, self.sizes.wide)
            yield command(RequestCode.LOCK_BATCH_MQ, {}, self._locked(f"{LEASE_GROUP}-{n}", count))
            left, n = left - count, n + 1

    async def _keep(self) -> None:
        """Send heartbeats of all members, renew all leases, and keep idle connections open, until cancelled."""
        while True:
            await trio.sleep(KEEP_SECONDS)
            with suppress(RemotingError):
                for n in range(self.sizes.members):
                    await self.members.send(
                        command(RequestCode.HEART_BEAT, {}, {"clientID": f"member-{n}", "withoutSub": True})
                    )
            for channel in (*self.peers, *self.pullers, self.control):
                with suppress(RemotingError):
                    await channel.send(
                        command(RequestCode.HEART_BEAT, {}, {"clientID": f"peer-{id(channel)}", "withoutSub": True})
                    )
            for lock in self._locks() if self.are_leased else ():
                with suppress(RemotingError):
                    await self.control.send(lock)
                await trio.sleep(0.1)

    def _locked(self, group: str, count: int) -> dict[str, Any]:
        queues = [{"brokerName": "faulty", "queueId": at, "topic": WIDE_TOPIC} for at in range(count)]
        return {"consumerGroup": group, "clientId": "full-client", "mqSet": queues}

    async def fill_users(self) -> None:
        """Create users with rights, which a broker also keeps while it checks no requests."""
        for start in range(0, self.sizes.users, CALLS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for n in range(start, min(start + CALLS_AT_ONCE, self.sizes.users)):
                    nursery.start_soon(self._add_user, f"full-user-{n}")

    async def _add_user(self, name: str) -> None:
        for request in user_with_right(name, WIDE_TOPIC):
            self._checked(request.code, await self.control.call(request, CALL_SECONDS))

    async def fill_producers(self) -> None:
        """Send numbered messages of many producers."""
        batches = (numbered_batch(KEY_TOPIC, f"full-p{n}", SENDS_OF_PRODUCER) for n in range(self.sizes.producers))
        await self._post_all(
            self.control,
            (frame(json_header(RequestCode.SEND_BATCH_MESSAGE, fields, 1, ONEWAY), body) for fields, body in batches),
        )

    async def fill_deletions(self) -> None:
        """Delete topics with messages."""
        names = [f"full-{self.sizes.topics - 1 - n}" for n in range(self.sizes.deletions)]
        self.deleted = len(names)
        for start in range(0, len(names), CALLS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for name in names[start : start + CALLS_AT_ONCE]:
                    nursery.start_soon(self.call, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})

    async def fill_pulls(self) -> None:
        """Let pulls wait: half of them on one queue, the others on the queues of the wide topic."""
        left = self.sizes.pulls
        while left > 0:
            count = min(left, PULLS_OF_CONNECTION)
            puller = await self._open()
            self.pullers.append(puller)
            await self._post_all(puller, (self._pull(at) for at in range(count)))
            left -= count

    def _pull(self, at: int) -> bytes:
        topic, queue = (PULL_TOPIC, 0) if at % 2 else (WIDE_TOPIC, at % self.sizes.wide)
        fields = {
            "consumerGroup": "full-g0",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": "0" if topic == PULL_TOPIC else "1",
            "maxMsgNums": "1",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "120000",
            "subscription": "*",
            "subVersion": "0",
        }
        return frame(json_header(RequestCode.PULL_MESSAGE, fields, at, ONEWAY))

    # ---------------------------------------------------------------- acts

    async def query_key_early(self) -> None:
        """12: the entries of the key that were stored before all of them."""
        await self._query(0, self._began_ms + 1000)

    async def query_key(self) -> None:
        """12: the newest entries of the key."""
        await self._query(0, 1 << 60)

    async def _query(self, begin: int, end: int) -> None:
        await self.call(
            RequestCode.QUERY_MESSAGE,
            {"topic": KEY_TOPIC, "key": "k", "maxNum": 32, "beginTimestamp": begin, "endTimestamp": end},
        )

    async def reset_wide(self) -> None:
        """222: reset the group of many members on the wide topic."""
        await self.call(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": WIDE_TOPIC, "group": MEMBERS_GROUP, "timestamp": 0, "isForce": "true"},
        )

    async def status_of_members(self) -> None:
        """223: the offsets that many members report."""
        await self.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "full-0", "group": MEMBERS_GROUP})

    async def inspect(self) -> None:
        """Every request of administrators that reads tables."""
        of = {"group": MEMBERS_GROUP, "consumerGroup": MEMBERS_GROUP, "topic": WIDE_TOPIC, "compareGroup": "full-g0"}
        for code in (202, 203, 208, 300, 303, 308, 343, 345, 38, 28, 26):
            await self.call(code, of)
        for fields in ({"consumerGroup": "full-g0"}, {"isOrder": "false"}):
            await self.call(208 if "consumerGroup" in fields else 317, fields)
        for code in (305, 328):
            await self.call(code)
        await self.call(321, {**of, "queueId": 0, "index": 0, "count": 1000})

    async def correction(self) -> None:
        """308: the lowest offsets of all groups on the wide topic."""
        await self.call(
            RequestCode.QUERY_CORRECTION_OFFSET, {"topic": WIDE_TOPIC, "compareGroup": "full-g0", "filterGroups": "x"}
        )

    async def copy_tables(self) -> None:
        """21, 43, 45 and 201: the tables as slaves copy them."""
        for code in (21, 43, 45, 201):
            await self.call(code, {"acceptStandardJsonOnly": "true"})

    async def clone_group(self) -> None:
        """314, then 207: copy all offsets of a group to another, which is then deleted."""
        await self.clone("full-cloned")
        await self.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "full-cloned", "cleanOffset": "true"})

    async def delete_topics(self) -> None:
        """215: delete ten topics at once, as long as there are others."""
        left = self.sizes.topics - self.deleted
        names = [f"full-{left - 1 - n}" for n in range(min(10, left // 2))]
        self.deleted += len(names)
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self.call, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})

    async def retention(self) -> None:
        """329 and 306: delete what has expired, with the ends of queues."""
        await self.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await self.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def peer_returns(self) -> None:
        """A connection with a member of every group ends, and another one begins."""
        self.peers.pop(0).close()
        await trio.sleep(1)
        await self.add_peer()

    async def members_return(self) -> None:
        """The connection of all members of a group ends, and they connect again."""
        self.members.close()
        await trio.sleep(1)
        self.members = await self._open()
        await self.fill_members()

    async def puller_returns(self) -> None:
        """A connection with many held pulls ends, and another one begins."""
        self.pullers.pop(0).close()
        await trio.sleep(1)
        puller = await self._open()
        self.pullers.append(puller)
        await self._post_all(puller, (self._pull(at) for at in range(min(self.sizes.pulls, PULLS_OF_CONNECTION))))

    async def renew_leases(self) -> None:
        """41 and 42: renew leases of one group, and release one."""
        await self.call(
            RequestCode.LOCK_BATCH_MQ, {}, self._locked(f"{LEASE_GROUP}-0", min(LEASES_OF_REQUEST, self.sizes.wide))
        )
        await self.call(RequestCode.UNLOCK_BATCH_MQ, {}, self._locked(f"{LEASE_GROUP}-0", 1))

    async def put_topic(self) -> None:
        """17: change one topic."""
        fields = {"topic": "full-0", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6}
        await self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def message_for_pulls(self) -> None:
        """310: a message for half of the held pulls."""
        fields = {**SEND_FIELDS, "b": PULL_TOPIC, "e": "0"}
        await self.call(RequestCode.SEND_MESSAGE_V2, fields, b"message")
        await trio.sleep(5)

    async def pulls_due(self) -> None:
        """Wait until all held pulls are due."""
        await trio.sleep(125)

    async def recreate_wide(self) -> None:
        """215, 17 and 310: delete the wide topic, create it again, and let groups lag on it again."""
        await self.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": WIDE_TOPIC})
        await self._topics([WIDE_TOPIC], self.sizes.wide)
        await self._send((WIDE_TOPIC, queue) for queue in range(self.sizes.wide))
        await self._lag()

    async def numbered_sends(self) -> None:
        """320: the sends of a new producer, for which another one is forgotten, and their repetition."""
        self.new_producers += 1
        fields, body = numbered_batch(KEY_TOPIC, f"full-new{self.new_producers}", SENDS_OF_PRODUCER)
        for _ in range(2):
            await self.call(RequestCode.SEND_BATCH_MESSAGE, fields, body)

    async def list_access(self) -> None:
        """3005, 3010 and 3002: all users and rights, and a change of one user."""
        await self.call(RequestCode.AUTH_LIST_USER)
        await self.call(RequestCode.AUTH_LIST_ACL, {"subjectFilter": "full", "resourceFilter": ""})
        await self.call(RequestCode.AUTH_UPDATE_USER, {"username": "full-user-0"}, {"password": "changed"})

    async def scrape(self) -> None:
        """The metrics over HTTP, with groups that lag on all queues of the wide topic."""
        assert self.metrics is not None
        with trio.fail_after(CALL_SECONDS):
            received = await scraped(self.metrics)
        if f'consumer_group="{LAG_GROUP}-0"'.encode() not in received:
            self.report(f"the scrape was answered {received[:100]!r}")

    async def mend(self) -> None:
        """Open connections again that the broker has closed."""
        if self.control.closed:
            self.control = await self._open()
        if self.members.closed:
            self.members = await self._open()
            await self.fill_members()


Act = Callable[[FullStates], Awaitable[None]]
ACTS: tuple[Act, ...] = (
    FullStates.query_key,
    FullStates.query_key_early,
    FullStates.put_topic,
    FullStates.correction,
    FullStates.inspect,
    FullStates.status_of_members,
    FullStates.copy_tables,
    FullStates.renew_leases,
    FullStates.peer_returns,
    FullStates.puller_returns,
    FullStates.clone_group,
    FullStates.delete_topics,
    FullStates.reset_wide,
    FullStates.members_return,
    FullStates.retention,
    FullStates.scrape,
    FullStates.numbered_sends,
    FullStates.list_access,
    FullStates.recreate_wide,
)
"""Acts that may be repeated in any order."""
LAST_ACTS: tuple[Act, ...] = (FullStates.message_for_pulls, FullStates.pulls_due)
"""Acts that empty the table of held pulls."""


async def _act(states: FullStates, act: Act, watched: Mapping[str, Path], report: Report) -> None:
    before = {name: _size(path) for name, path in watched.items()}
    began = time.monotonic()
    try:
        await act(states)
    except RemotingError as error:
        report(f"{act.__name__}: {error}")
    took = time.monotonic() - began
    await trio.sleep(SETTLE_SECONDS)
    found = [
        f"{name} {what} {max(turns)[0]} ms {max(turns)[1][:110]}"
        for name, path in watched.items()
        for what, turns in _turns(path, before[name]).items()
    ]
    report(f"{act.__name__} ({took:.1f} s): {'; '.join(found)}")


def _size(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


def _turns(path: Path, start: int) -> dict[str, list[tuple[int, str]]]:
    """The long turns that were written behind a position of the file, by kind."""
    turns: dict[str, list[tuple[int, str]]] = {}
    for turn in map(json.loads, path.read_text()[start:].splitlines() if path.exists() else ()):
        turns.setdefault(turn["what"], []).append((turn["cpu_ms"], turn["task"]))
    return turns


async def idle(_states: FullStates) -> None:
    """Do nothing for a while, so that timers run."""
    await trio.sleep(15)


async def _measure(directory: Path, sizes: Sizes, report: Report, acts: Sequence[Act], metrics_port: int) -> None:
    watched = {name: directory / f"{name}.turns" for name in ("master", "namesrv")}
    async with running_namesrv(directory / "namesrv", watched["namesrv"]) as namesrv:
        settings = {"namesrvAddr": str(namesrv.address), **SETTINGS, **with_metrics(metrics_port)}
        settings["fileReservedTime"] = 0  # all segments have expired
        async with (
            running_broker(directory / "master" / "store", settings, watched["master"]) as master,
            trio.open_nursery() as nursery,
        ):
            states = FullStates(master.address, nursery, sizes, report, Address("127.0.0.1", metrics_port))
            await states.fill()
            report(f"filled; {master.resident_bytes >> 20} MiB")
            for act in acts:
                await _act(states, act, watched, report)
            report(f"at the end: {master.resident_bytes >> 20} MiB")
            nursery.cancel_scope.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.full_states", description=__doc__)
    parser.add_argument("--divided-by", type=int, default=1, help="make the states smaller by this factor (1)")
    parser.add_argument("--acts", default="", help="only these acts, by name")
    chosen = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-full-"))
    sizes = Sizes().divided(chosen.divided_by) if chosen.divided_by > 1 else Sizes()
    acts = [act for act in (idle, *ACTS, *LAST_ACTS) if not chosen.acts or act.__name__ in chosen.acts.split(",")]
    with reserved_ports("127.0.0.1", 1) as (port,):
        trio.run(_measure, directory, sizes, print_line, acts, port)
    return close_directory(directory, [])


if __name__ == "__main__":
    sys.exit(main())
