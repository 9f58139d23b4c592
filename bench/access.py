"""What access control costs a broker for each send: the check of signature and rights alone, in one process without a network.

python bench/access.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from ledgermq.broker.access.audit import Audit
from ledgermq.broker.access.control import AccessControl
from ledgermq.broker.access.policies import Acl
from ledgermq.broker.access.users import AccessTable, User
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.server import ServerConnection, ServerLimits
from ledgermq.remoting.signature import Credentials, is_signed, sign
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.clock import SystemClock
from ledgermq.world.network import Address

ROUNDS, REPEATS = 20_000, 5
BODY_BYTES = 1024
ENTRIES = (2, 1000)
"""How many entries the rights of the user have."""


def send() -> RemotingCommand:
    """A send as a Java client signs it."""
    fields = dict.fromkeys("acdefghjklm", "0") | {"b": "orders", "i": "UNIQ_KEY\x017F0000010001\x02TAGS\x01a\x02"}
    command = RemotingCommand(310, fields, bytes(BODY_BYTES))
    sign(command, Credentials("alice", "hush"))
    return command


def control(entries: int) -> AccessControl:
    """A broker's control whose user may send to the topic, by one of many entries."""
    given = [{"resource": f"Topic:t{number}", "actions": ["Pub"], "decision": "Allow"} for number in range(entries - 1)]
    given.append({"resource": "Topic:ord*", "actions": ["Pub", "Sub"], "decision": "Allow", "sourceIps": ["10.0.0.0/8"]})
    table = AccessTable()
    acl = Acl.from_json({"subject": "User:alice", "policies": [{"entries": given}]})
    table.apply({"alice": User("alice", "hush")}, {acl.subject: acl})
    return AccessControl(table=table, cluster="c", authorizes=True, configured={}, audit=Audit(SystemClock()))


def best_us(call: Callable[[], object]) -> float:
    """The processor time of one call in the best of some rounds, in microseconds."""
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(ROUNDS):
            call()
        best = min(best, time.process_time() - began)
    return best / ROUNDS * 1e6


def main() -> None:
    """Print one line for each measurement."""
    command = send()
    connection = ServerConnection(None, Address("10.1.2.3", 1), sim_world(0).clock, ServerLimits())  # type: ignore[arg-type]
    print(f"signature of {BODY_BYTES} bytes: {best_us(partial(is_signed, command, 'hush')):.2f} us")
    for entries in ENTRIES:
        access = control(entries)
        assert access.refusal(connection, command) is None
        print(f"signature and rights of {entries} entries: {best_us(partial(access.refusal, connection, command)):.2f} us")


if __name__ == "__main__":
    main()
