"""`ledgermq store backup`, `verify-backup` and `restore`: copies of a store for the day when its disks are gone."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress

import attrs
import click

from ..ha.dledger.offline import forget_what_was_synced, has_ledger, log_parts, look_of
from ..ha.dledger.reset_peers import look_at_node, reset_peers
from ..store.errors import BackupRefused, DamagedBackup
from ..store.keeping.backup import DirectoryKeep, Keep, choose_point, restore, take_backup, verify_backup
from ..world.address import Address
from ..world.files import PIECE_BYTES
from ..world.real import World, real_world
from .clients import Moment, json_option
from .output import print_json, when
from .reset_peers import address_of
from .store_errors import ending_with_reason

backup_directory = click.argument("backup", type=click.Path(exists=True, file_okay=False))
get_option = click.option(
    "--get", "get", help="A command that writes the object {} to its standard output, where --put was used."
)


@attrs.frozen
class CommandKeep:
    """A backup whose pieces of the log are kept by commands, as those of object stores. Implements `Keep`.

    The directory has the manifests and small files, which the commands keep too.
    """

    inner: DirectoryKeep
    put_command: str | None = None
    get_command: str | None = None

    def points(self) -> list[str]:
        return self.inner.points()

    def link(self, name: str, path: str) -> bool:
        del name, path
        return False

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        assert self.put_command is not None
        is_small = name.startswith("points/")
        if is_small:
            pieces = list(pieces)
        command = _command_of(self.put_command, name)
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # noqa: S603 - the operator's own command
            assert process.stdin is not None
            has_all = False
            with suppress(BrokenPipeError):
                try:
                    for piece in pieces:
                        process.stdin.write(piece)
                finally:
                    process.stdin.close()
                has_all = True
        if process.returncode or not has_all:
            raise BackupRefused(
                f"`{shlex.join(command)}` ended with status {process.returncode}"
                f"{'' if has_all else ' before it had read all'}; {name} was not stored"
            )
        if is_small:
            self.inner.put(name, pieces)

    def get(self, name: str) -> Iterator[bytes]:
        if self.get_command is None or self.inner.has(name):
            yield from self.inner.get(name)
            return
        command = _command_of(self.get_command, name)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: S603 - the operator's own command
            assert process.stdout is not None
            while piece := process.stdout.read(PIECE_BYTES):
                yield piece
        if process.returncode:
            raise DamagedBackup(name, f"`{shlex.join(command)}` ended with status {process.returncode}")


def _command_of(command: str, name: str) -> list[str]:
    return [word.replace("{}", name) for word in shlex.split(command)]


def _keep_of(world: World, directory: str, *, put: str | None = None, get: str | None = None) -> Keep:
    for option, command in (("--put", put), ("--get", get)):
        if command is None:
            continue
        if "{}" not in command:
            raise click.UsageError(f"{option} needs a {{}} where the name of the object belongs")
        try:
            shlex.split(command)
        except ValueError as error:
            raise click.UsageError(f"{option} cannot be read as a command: {error}") from error
    inner = DirectoryKeep(world.disk, directory.rstrip("/"))
    return inner if put is None and get is None else CommandKeep(inner, put, get)


@click.command("backup")
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.argument("backup", type=click.Path(file_okay=False))
@click.option(
    "--put", "put", help="A command that stores its standard input as the object {}; BACKUP then has the manifests alone."
)
@json_option
def backup(store: str, backup: str, put: str | None, as_json: bool) -> None:
    """Add a point to BACKUP: the STORE of a broker or node as it is now, while it runs or not.

    The first point has the whole log, each later one only what the log has got since. On one file system full files of the log
    are not copied but get a second name. That protects from mistakes, but not from the loss of the disk.
    """
    world, root = real_world(), store.rstrip("/")
    keep = _keep_of(world, backup, put=put)
    with ending_with_reason(world.disk):
        size = _log_bytes(world, root)  # first, so that no directory is made for what is no store
    with (
        ending_with_reason(world.disk),
        _locked(world, backup),
        click.progressbar(length=size, label="reading the log", file=sys.stderr, hidden=as_json) as bar,
    ):
        done = take_backup(
            world.disk, root, keep, lambda: log_parts(world.disk, root), world.clock.wall_ms, bar.update, lambda: time.sleep(1)
        )
    point = done.point
    if as_json:
        print_json(
            {
                "point": point.name,
                "taken": point.taken_ms,
                "begin": point.begin,
                "end": point.end,
                "copied_bytes": done.copied_bytes,
                "linked_bytes": done.linked_bytes,
            }
        )
        return
    click.echo(f"point {point.name}, {when(point.taken_ms)}: physical offsets {point.begin} to {point.end}")
    click.echo(f"copied {done.copied_bytes} bytes of the log, linked {done.linked_bytes}")


@contextmanager
def _locked(world: World, directory: str) -> Generator[None]:
    """Let no other backup write to the directory meanwhile, whose objects would have the same temporary names."""
    world.disk.make_directories(directory)
    try:
        lock = world.disk.lock(f"{directory.rstrip('/')}/lock")
    except BlockingIOError as error:
        raise BackupRefused(f"another backup writes to {directory}; no point was added") from error
    try:
        yield
    finally:
        lock.release()


def _log_bytes(world: World, root: str) -> int:
    size = sum(file.size for part in log_parts(world.disk, root) for file in part.files)
    if not size:
        raise BackupRefused(f"{root} has no log, so it is no store; no point was added")
    return size


@click.command("verify-backup")
@backup_directory
@get_option
@json_option
def verify(backup: str, get: str | None, as_json: bool) -> None:
    """Read all of BACKUP and compare it with the CRCs of its manifests; exit status 1 if something is damaged or missing."""
    points, problems = verify_backup(_keep_of(real_world(), backup, get=get))
    if not points and not problems:
        problems = [f"{backup} has no point"]
    if as_json:
        print_json(
            {"points": [{"point": each.name, "begin": each.begin, "end": each.end} for each in points], "problems": problems}
        )
    else:
        for each in points:
            click.echo(f"point {each.name}, {when(each.taken_ms)}: physical offsets {each.begin} to {each.end}")
        click.echo("\n".join(problems) or "sound")
    if problems:
        raise click.exceptions.Exit(1)


@click.command("restore")
@backup_directory
@click.argument("target", type=click.Path(file_okay=False))
@click.option(
    "--until",
    "until_ms",
    type=Moment(has_latest=False),
    help="Leave out what was stored later: 10m (ago), a date, milliseconds.",
)
@click.option(
    "--address", callback=address_of, help="Where the node listens for others, HOST:PORT; for a node of a DLedger group."
)
@get_option
def restore_store(backup: str, target: str, until_ms: int | None, address: Address | None, get: str | None) -> None:
    """Write the newest point of BACKUP, or the store at another moment, to the empty directory TARGET.

    TARGET becomes a store of the mode that was backed up; that of a DLedger node becomes a group of its own, with this node as
    the only voter. A moment lies between two points: what was stored up to it is restored, with the tables of the point before
    and what the log changed in them until then. Some messages may be delivered again, and none is skipped.
    """
    world, directory = real_world(), target.rstrip("/")
    disk, keep = world.disk, _keep_of(world, backup, get=get)

    def finish() -> None:
        forget_what_was_synced(disk, directory)
        if address is not None and has_ledger(disk, directory):
            reset_peers(disk, directory, look_at_node(disk, directory), address, world.clock.wall_ms(), secrets=world.secrets)

    with ending_with_reason(disk, directory):
        choice, damaged = choose_point(keep, until_ms)
        for problem in damaged:
            click.echo(f"{problem}; this point was left out", err=True)
        is_ledger = any(piece.extent.directory != "commitlog" for piece in choice.pieces)
        if is_ledger and address is None:
            raise click.UsageError("the backup is of a node of a DLedger group, so --address is needed; nothing was written")
        if address is not None and not is_ledger:
            raise click.UsageError("the backup is of a classic store, which has no use for --address; nothing was written")
        size = sum(piece.extent.end - piece.extent.begin for piece in choice.pieces)
        with click.progressbar(length=size, label="restoring", file=sys.stderr) as bar:
            done = restore(disk, keep, directory, look_of, finish=finish, until_ms=until_ms, advance=bar.update)
    click.echo(f"restored physical offsets {choice.pieces[0].extent.begin} to {done.end}")
    is_node = has_ledger(disk, directory)  # not at a moment before DLedger was switched on
    mode = f"enableDLegerCommitLog=true, dLegerPeers of this node alone (at {address}), " if is_node else ""
    click.echo(
        f"start a broker with {mode}storePathRootDir={target}, mappedFileSizeCommitLog={choice.pieces[-1].extent.file_size}"
    )
    click.echo("beside the original: with other ports, another brokerName and a name server of its own")
