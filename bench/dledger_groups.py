"""Three brokers of one side in DLedger mode: each is a `Cluster`, and the first one has the name server for all.

Ours acknowledge a message when it is on the medium of two nodes, Apache's before any node has synced it. A group is ready when
one of its nodes has acknowledged a send. The leader may change whenever the group was stopped for a while, so every measurement
asks for the leader first.
"""

import contextlib
import json
import sys
import time
from collections.abc import Generator, Sequence

import attrs
from measuring import await_route
from processes import ProcessFailedError
from servers import QUEUES, TOPIC, Cluster, Side, free_port, new_store
from slaves import SECRET, log_end
from wire import SEND_MESSAGE_V2, Connection, RequestRefusedError, send_fields

NODES = 3
_GET_ROUTE_INFO_BY_TOPIC = 105
_ANY_TOPIC = "TBW102"
_LEADER_SECONDS_MAX = 180
_FOLLOW_SECONDS_MAX = 600
_PROBE_PAUSE = 0.002
_PROBE_TIMEOUT = 3.0
_APACHE_MEMORY = ("-Xms700m", "-Xmx700m", "-XX:MaxDirectMemorySize=1g")
"""Memory limits of one JVM, since three share the machine."""
_SETTINGS = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "bench",
    # Three brokers map their logs at the same time.
    "mappedFileSizeCommitLog": str(256 << 20),
    "registerNameServerPeriod": "10000",
}


@attrs.define
class Group:
    """The nodes of one group, in the order of their ids."""

    side: Side
    nodes: list[Cluster]
    topic_known: bool = False

    @classmethod
    def prepare(cls, side: Side) -> "Group":
        """Choose ports and empty stores."""
        peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(NODES))
        own = {"haSecret": SECRET} if side == "ours" else {}
        nodes: list[Cluster] = []
        for number in range(NODES):
            settings = {**_SETTINGS, **own, "dLegerPeers": peers, "dLegerSelfId": f"n{number}"}
            namesrv_port = nodes[0].namesrv_port if nodes else free_port()
            node = Cluster(side, new_store(), namesrv_port, free_port(4) + 2, settings)
            node.apache_memory = _APACHE_MEMORY
            nodes.append(node)
        return cls(side, nodes)

    def start(self, numbers: Sequence[int] = range(NODES)) -> None:
        """Start the name server and these nodes, and wait until one of them acknowledges a send."""
        self.nodes[0].start_namesrv()
        for number in numbers:
            self.nodes[number].launch_broker()
        leader = self.leader()
        leader.create_topic()
        self.topic_known = True
        with leader.connect() as connection:
            await_route(leader, connection)
        self.await_acknowledged()

    def running(self) -> list[Cluster]:
        return [node for node in self.nodes if node.broker is not None]

    def kill(self, node: Cluster) -> None:
        """Kill a node with SIGKILL; it can be started again on its store."""
        node.running_broker.kill()
        node.broker = None

    def leader(self) -> Cluster:
        """The master according to the name server; once the topic exists, the node that acknowledges a send."""
        if self.topic_known:
            return self.await_acknowledged()[0]
        deadline = time.perf_counter() + _LEADER_SECONDS_MAX
        host, _, port = self.nodes[0].namesrv_address.partition(":")
        while time.perf_counter() < deadline:
            self._check_running()
            with contextlib.suppress(OSError), Connection((host, int(port))) as namesrv:
                fields = {"topic": _ANY_TOPIC, "acceptStandardJsonOnly": "true"}
                reply = namesrv.ask(_GET_ROUTE_INFO_BY_TOPIC, fields)
                known = json.loads(reply.body)["brokerDatas"] if not reply.code else []
                addresses = {broker["brokerAddrs"].get("0") for broker in known}
                for node in self.running():
                    if "{}:{}".format(*node.broker_address) in addresses:
                        return node
            time.sleep(0.1)
        raise ProcessFailedError(f"{self.side} group", "elected no leader", self.nodes[0].folder / "broker.log")

    def followers(self, leader: Cluster) -> list[Cluster]:
        return [node for node in self.running() if node is not leader]

    def await_acknowledged(self) -> tuple[Cluster, float]:
        """Try all nodes in turn until one acknowledges a send; returns the node and the time (`time.perf_counter`)."""
        deadline = time.perf_counter() + _LEADER_SECONDS_MAX
        connections: dict[int, Connection] = {}
        try:
            while time.perf_counter() < deadline:
                self._check_running()
                for node in self.running():
                    if _acknowledges(node, connections):
                        return node, time.perf_counter()
                time.sleep(_PROBE_PAUSE)
        finally:
            for connection in connections.values():
                connection.socket.close()
        raise ProcessFailedError(f"{self.side} group", "acknowledges nothing", self.nodes[0].folder / "broker.log")

    def await_following(self, node: Cluster) -> None:
        """Wait until the log of `node` is as long as the leader's; nothing is sent meanwhile."""
        leader = self.leader()
        deadline = time.perf_counter() + _FOLLOW_SECONDS_MAX
        while not (node is leader or 0 <= ended(leader) <= ended(node)):
            if time.perf_counter() > deadline:
                raise ProcessFailedError(f"{self.side} node", "does not follow", node.folder / "broker.log")
            time.sleep(_PROBE_PAUSE)

    def _check_running(self) -> None:
        for node in self.running():
            if node.running_broker.popen.poll() is not None:
                raise ProcessFailedError(node.running_broker.name, "has ended", node.running_broker.log)

    def discard(self) -> None:
        for node in self.nodes:
            node.discard()


def ended(node: Cluster) -> int:
    """The end of the node's log; -1 while the node does not answer."""
    try:
        return log_end(node)
    except OSError:
        return -1


def _acknowledges(node: Cluster, connections: dict[int, Connection]) -> bool:
    """Send one message over a cached connection; returns whether it was acknowledged."""
    now_ms = time.time_ns() // 1_000_000
    fields = send_fields(TOPIC, 0, unique_key=f"7F{time.time_ns():030X}", born_ms=now_ms, queues=QUEUES)
    try:
        if node.broker_port not in connections:
            connections[node.broker_port] = Connection(node.broker_address, _PROBE_TIMEOUT)
        return not connections[node.broker_port].ask(SEND_MESSAGE_V2, fields, b"probe").code
    except (OSError, RequestRefusedError):
        if (broken := connections.pop(node.broker_port, None)) is not None:
            broken.socket.close()
        return False


@contextlib.contextmanager
def started_groups(sides: Sequence[Side], numbers: Sequence[int] = range(NODES)) -> Generator[dict[Side, Group]]:
    """Run one group of each side with the benchmark's topic, but only the nodes with these numbers."""
    groups: dict[Side, Group] = {}
    with contextlib.ExitStack() as stack:
        for side in sides:
            began = time.perf_counter()
            groups[side] = group = Group.prepare(side)
            stack.callback(group.discard)
            group.start(numbers)
            print(f"  {side}: a group that acknowledges after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        yield groups


def as_tables(groups: dict[Side, Group]) -> list[dict[Side, Cluster]]:
    """The nodes in the form of the arguments of `others_stopped`."""
    return [{side: group.nodes[number] for side, group in groups.items()} for number in range(NODES)]
