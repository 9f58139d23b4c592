"""`ledgermq store to-classic`: write the store of a DLedger group's last node as a classic store."""

from __future__ import annotations

import sys

import click

from ..broker.modes.leaving_dledger import write_classic_copy
from ..ha.dledger.offline import all_log_files
from ..world.real import real_world
from .store_errors import ending_with_reason


@click.command("to-classic")
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.argument("target", type=click.Path(file_okay=False))
def command(store: str, target: str) -> None:
    """Write the STORE of a DLedger group's only voter to TARGET as a classic store, to leave the mode.

    Remove the other voters with `ledgermq dledger remove` first, then stop the last node. Messages keep their queue offsets,
    and topics, groups and consumer offsets come along; message ids that contain a physical offset change. STORE keeps what it
    has; an end of its ledger that a crash has torn is repaired first, as at a start.
    """
    world, root = real_world(), store.rstrip("/")
    with ending_with_reason(world.disk, target.rstrip("/")):
        size = sum(file.size for file in all_log_files(world.disk, root))
        with click.progressbar(length=size, label="copying the log", file=sys.stderr) as bar:
            copy = write_classic_copy(world, root, target.rstrip("/"), bar.update)
    click.echo(f"copied {copy.records} records, physical offsets 0 to {copy.end}")
    click.echo(f"start a broker with enableDLegerCommitLog=false and storePathRootDir={target}")
