"""`ledgermq store reset-peers`: make one node of a DLedger group the only voter, when the others are lost for good."""

from __future__ import annotations

import click

from ..ha.dledger.reset_peers import look_at_node, reset_peers
from ..store.locking import lock_store
from ..world.address import Address
from ..world.real import real_world
from .store_errors import ending_with_reason


def address_of(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Address | None:
    """Read an option `HOST:PORT`; None if it was not given."""
    try:
        return Address.parse(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("reset-peers")
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("--address", required=True, callback=address_of, help="Where this node listens for the others, HOST:PORT.")
@click.option("--node", help="Its dLegerSelfId, if the store holds several ledgers.")
@click.option("--data", default="", help="storePathDLedgerCommitLog, if it was changed since the node last ran.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(store: str, address: Address, node: str | None, data: str, yes: bool) -> None:
    """Make a node of a DLedger group the only voter, when the disks of a majority are lost for good.

    Do this on one node only: of the remaining nodes, the one whose log ends last. Entries that only lost nodes had are given
    up. The others join it again as new nodes with empty stores; none of them may ever start again with its old store. An end of
    the log that a crash has torn is repaired before the question, as at a start.
    """
    world, root = real_world(), store.rstrip("/")
    with ending_with_reason(world.disk):
        lock = lock_store(world.disk, root, *([data] if data else []))
        try:
            left = look_at_node(world.disk, root, node, data)
            click.echo(f"{left.peer} has entries up to {left.end_index}; up to {left.committed_index} it knows them committed")
            if left.configuration is not None:
                click.echo(f"voters by its log: {', '.join(left.configuration.voters)}")
            if not yes:
                click.confirm(f"Let {left.peer} go on as the only voter, and give up what only other nodes have?", abort=True)
            reset_peers(world.disk, root, left, address, world.clock.wall_ms(), data, secrets=world.secrets)
        finally:
            lock.release()
    click.echo(
        f"{left.peer} is the only voter: start it with dLegerPeers={left.peer}-{address}, then start others with empty stores "
        "and let them in with `ledgermq dledger add`"
    )
