"""A node of ours without a broker, in a group of DLedger nodes: does what standard input says, as `LedgerPeer.java` does.

Arguments: group, own id, peers, base directory, bytes of a data file.
"""

from __future__ import annotations

import sys

import trio

from ledgermq.ha.dledger.java.state import JavaSettings
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles
from ledgermq.ha.dledger.opening import open_replica
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.settings import JAVA, ReplicaSettings, parse_peers
from ledgermq.ha.raft.errors import Refused
from ledgermq.ha.raft.units import PeerId
from ledgermq.world.real import real_world

INDEX_FILE_SIZE = 32 * 1024
BATCH = 50
WAITING_MAX = 10
WAIT_SECONDS = 10.0


async def append(replica: Replica, count: int, size: int) -> str:
    """Append entries whose bodies all hold the byte of their number; how many were acknowledged, and the first refusal."""
    acknowledged, refusal = 0, 200
    free = trio.Semaphore(WAITING_MAX)

    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await free.acquire()

        def done(outcome: Outcome, appended: int = len(numbers)) -> None:
            nonlocal acknowledged, refusal
            free.release()
            if outcome is Outcome.COMMITTED:
                acknowledged += appended
            else:
                refusal = 502

        try:
            placed = replica.propose([bytes([number % 256]) * size for number in numbers], patch=False)
        except Refused:
            refusal = 404
            free.release()
            break
        replica.when_committed(placed.last_index, replica.world.clock.monotonic() + WAIT_SECONDS, done)
    for _ in range(WAITING_MAX):
        await free.acquire()
    return f"{acknowledged} {refusal}"


def status(replica: Replica) -> str:
    """Role, term, leader, begin index, end index, committed index, end position."""
    ledger, leading = replica.ledger, replica.leading
    begin = -1 if ledger.empty else ledger.begin_index
    numbers = (begin, ledger.end_index, ledger.committed_index, ledger.end_position)
    return " ".join(map(str, (leading.role.name, leading.term, leading.leader, *numbers)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main() -> None:
    group, own, peers, base, file_size = sys.argv[1:6]
    settings = ReplicaSettings(
        group=group,
        self_id=PeerId(own),
        peers=parse_peers(peers),
        files=LedgerFiles(f"{base}/dledger-{own}", int(file_size), INDEX_FILE_SIZE),
        listen_host="127.0.0.1",
        dialect=JAVA,
        java=JavaSettings(heartbeat_ms=500),
    )
    async with open_replica(real_world(), settings) as replica:
        say("ready")
        while words := (await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)).split():
            if words[0] == "append":
                say(await append(replica, int(words[1]), int(words[2])))
            elif words[0] == "status":
                say(status(replica))
            else:
                break
    say("stopped")


if __name__ == "__main__":
    trio.run(main)
