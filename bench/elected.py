"""Kill masters that a controller has elected (SIGKILL): seconds until a producer's next send is acknowledged.

`ledgermq up --mode controller` runs the controller, and the brokers as processes, which it starts again. One producer sends one
message after the other. Each kill comes when all replicas are in sync.
"""

import argparse
import itertools
import logging
import os
import re
import signal
import statistics
import subprocess
import sys

import trio

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.message.message import Message

TOPIC = "Elected"
IN_SYNC_SECONDS_MAX = 60
OBSERVED_SECONDS = 5
"""How long sends are observed after a kill; meanwhile the broker is started again."""


async def _send(producer: Producer, acknowledged: list[float]) -> None:
    """Send one message after the other, and note when each was acknowledged."""
    while True:
        try:
            if (await producer.send(Message(TOPIC, b"x"))).status.name == "SEND_OK":
                acknowledged.append(trio.current_time())
        except ClientError:
            await trio.sleep(0.001)


async def _master(admin: Admin, nodes: int) -> str:
    """The address of the master, once all replicas are in sync."""
    with trio.fail_after(IN_SYNC_SECONDS_MAX):
        while True:
            try:
                for broker in (await admin.cluster()).brokers:
                    master = str(broker.addresses.get(0, ""))
                    if master and len((await admin.ha_status(master))["controller"]["syncStateSet"]) == nodes:
                        return master
            except ClientError:
                pass
            await trio.sleep(0.1)


def _process_of(address: str) -> int:
    """The process that listens at an address; one that was killed is started again with another id."""
    port = address.rpartition(":")[2]
    found = subprocess.run(["ss", "-ltnpH", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"pid=(\d+)", found)
    assert match is not None, f"nothing listens at {address}"
    return int(match[1])


async def _measure(namesrv: str, nodes: int, kills: int) -> list[float]:
    gaps: list[float] = []
    acknowledged: list[float] = []
    async with open_admin(namesrv) as admin, open_producer(namesrv, "bench") as producer, trio.open_nursery() as nursery:
        nursery.start_soon(_send, producer, acknowledged)
        for _ in range(kills):
            master = await _master(admin, nodes)
            await trio.sleep(1)
            killed = trio.current_time()
            os.kill(_process_of(master), signal.SIGKILL)
            await trio.sleep(OBSERVED_SECONDS)
            # Answers that were under way may still arrive; the next master's come after the longest silence.
            moments = [killed, *(at for at in acknowledged if at > killed)]
            _, resumed = max(itertools.pairwise(moments), key=lambda pair: pair[1] - pair[0])
            gaps.append(resumed - killed)
            print(f"{gaps[-1]:.3f} s", flush=True)
        nursery.cancel_scope.cancel()
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    found = parser.parse_args()
    command = [sys.executable, "-m", "ledgermq.cli.main", "up", "--mode", "controller", "--nodes", str(found.nodes)]
    logging.getLogger("ledgermq").setLevel(logging.ERROR)  # the producer would warn of each kill
    with subprocess.Popen(
        [*command, "--port", "0", "--broker-port", "0", "--log-level", "error"], stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        try:
            namesrv = next(match[1] for line in up.stdout if (match := re.match(r"name server +(\S+)", line)))
            gaps = trio.run(_measure, namesrv, found.nodes, found.kills)
        finally:
            up.send_signal(signal.SIGINT)
    print(f"{len(gaps)} kills: median {statistics.median(gaps):.3f} s, longest {max(gaps):.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
