"""What interop tests ask of ledgers and of the nodes that keep them, whoever made them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio

from ledgermq.ha.dledger.java import bodies as java
from ledgermq.ha.dledger.ledger.layout import INDEX_FILE_SIZE
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.ha.dledger.settings import parse_peers
from ledgermq.ha.raft.units import PeerId
from ledgermq.remoting.channel import connected
from ledgermq.remoting.command import RemotingCommand
from ledgermq.world.disk import RealDisk
from ledgermq.world.real import real_world

from .members import Member
from .servers import copy_store

TRANSFER_SECONDS = 120.0
SUCCESS = 200


def entries_of(directory: Path, copy: Path, file_size: int, index_file_size: int = INDEX_FILE_SIZE) -> tuple[int, str]:
    """How many entries a ledger holds, and the SHA-256 of their indexes, terms and bodies; read from a copy."""
    copy_store(directory, copy)
    ledger = open_ledger(RealDisk(), LedgerFiles(str(copy), file_size, index_file_size))
    digest = hashlib.sha256()
    for index in range(ledger.begin_index, ledger.end_index + 1):
        digest.update(b"%d %d " % (index, ledger.term_of(index) or 0))
        digest.update(ledger.body(index))
    ledger.close()
    return ledger.end_index + 1 - ledger.begin_index, digest.hexdigest()


async def transfer(leader: Member, target: Member) -> None:
    """Have the leader of a group that speaks DLedger's dialect hand over, as a client of DLedger does (LEADERSHIP_TRANSFER)."""
    stored = dict(line.split("=") for line in (leader.ledger / "currterm").read_text().split())
    own = PeerId(leader.dledger_id)
    request = {
        "group": leader.config["dLegerGroup"],
        "remoteId": own,
        "localId": "client",
        "transferId": own,
        "transfereeId": target.dledger_id,
        "term": int(stored["currTerm"]),
    }
    address = parse_peers(str(leader.config["dLegerPeers"]))[own]
    with trio.fail_after(TRANSFER_SECONDS):
        async with connected(address, network=real_world().network) as channel:
            command = RemotingCommand(java.LEADERSHIP_TRANSFER, body=java.encode_fields(request))
            answer = java.read_object((await channel.call(command, TRANSFER_SECONDS)).body)
    assert answer["code"] == SUCCESS, answer
