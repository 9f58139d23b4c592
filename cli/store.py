"""`ledgermq store`: inspect and repair the files of a store without a broker."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator

import attrs
import click

from ..ha.dledger.offline import all_log_files, look_at_entry
from ..message.control import ACCESS_CHANGED, CONTROL_TOPIC, KIND_PROPERTY
from ..message.flags import COMPRESSED
from ..message.layout import decode_record
from ..store.keeping.cutting import Losses, accept_missing, cut_log, losses_of
from ..store.offline import LogFile, LogRecord, Report, read_log, read_queue, stores_below, unfinished_copy, verify
from ..world.real import real_world
from .backup import backup
from .backup import restore_store as restore
from .backup import verify as verify_backup
from .clients import json_option
from .output import print_json, stored_fields, text_or_hex, when
from .reasons import SuggestingGroup
from .reset_peers import command as reset_peers
from .store_errors import ending_with_reason
from .to_classic import command as to_classic

directory = click.argument("store", type=click.Path(exists=True, file_okay=False))


@click.group("store", cls=SuggestingGroup)
def command() -> None:
    """A store's files, without a broker."""


def _log_of(store: str) -> list[LogFile]:
    """The files of a store's log.

    Raises:
        click.ClickException: there are none; the text suggests the right directory.
    """
    disk = real_world().disk
    files = all_log_files(disk, store)
    if any(file.size for file in files):
        return files
    if (copy := unfinished_copy(disk, store)) is not None:
        raise click.ClickException(str(copy))
    if disk.is_directory(f"{store}/commitlog"):
        raise click.ClickException(f"{store} is a store without messages: its log has no bytes yet")
    below = stores_below(disk, store)
    if not below:
        raise click.ClickException(f"{store} holds no commitlog directory with files: is this storePathRootDir?")
    called = click.get_current_context().command_path
    choices = (f"  {called} {shlex.quote(path)}" for path in below)
    raise click.ClickException("\n".join((f"{store} is no store; below it there are these, of one broker each:", *choices)))


@command.command("dump")
@directory
@click.option("--topic", help="Only records of this topic; without it, all but events of the broker.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only of this queue; shows its entries with them.")
@click.option("--from", "begin", type=click.IntRange(min=0), default=0, help="The first physical offset.")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="End after so many.")
@json_option
def dump(store: str, topic: str | None, queue_id: int | None, begin: int, count_max: int | None, as_json: bool) -> None:
    """Print the records of the log, one per line, in the order in which they were stored."""
    if queue_id is not None and topic is None:
        raise click.UsageError("--queue needs its --topic")
    files = _log_of(store)
    report = Report()
    if (copy := unfinished_copy(real_world().disk, store)) is not None:
        report.problem(str(copy))
    records: Iterator[LogRecord] = (
        record
        for record in read_log(files, begin, report)
        if (record.topic == topic if topic is not None else record.topic != CONTROL_TOPIC)
    )
    if queue_id is not None:
        assert topic is not None
        records = _of_queue(store, topic, queue_id, records)
    for record in itertools.islice(records, count_max):
        message = decode_record(record.bytes)
        if message.properties.get(KIND_PROPERTY) == ACCESS_CHANGED and message.topic == CONTROL_TOPIC:
            message = attrs.evolve(message, body=b"(with passwords, not shown)")
        if as_json:
            print_json(stored_fields(message))
            continue
        body = "(compressed)" if message.sys_flag & COMPRESSED else text_or_hex(message.body)
        place = f"{message.topic}:{message.queue_id} offset {message.queue_offset}"
        click.echo(f"{record.offset:>12}  {message.size:>7}  {when(message.store_timestamp)}  {place}  {body[:100]}")
    if report.problem_count:
        raise click.ClickException("\n".join((*report.problems, "`ledgermq store verify` reports more.")))


def _of_queue(store: str, topic: str, queue_id: int, records: Iterator[LogRecord]) -> Iterator[LogRecord]:
    listed = {physical_offset for _, physical_offset, _, _ in read_queue(real_world().disk, store, topic, queue_id)}
    return (record for record in records if record.span.queue_id == queue_id and record.offset in listed)


@command.command("verify")
@directory
@json_option
def verify_store(store: str, as_json: bool) -> None:
    """Check every record, and that log and queues agree; exit status 1 if they do not.

    STORE may also be the directory of `ledgermq up --store`; then the store of each broker in it is checked.
    """
    disk = real_world().disk
    several = [] if disk.is_directory(f"{store}/commitlog") else stores_below(disk, store)
    # A broker of a cluster that never stored a message does not keep the stores of the others from being checked.
    logs = {path: all_log_files(disk, path) for path in several} or {store: _log_of(store)}
    reports = {path: _verified(path, files, as_json=as_json) for path, files in logs.items()}
    if as_json:
        found = [{"store": path, **attrs.asdict(report)} for path, report in reports.items()]
        print_json(found if several else found[0])
    for path, report in reports.items() if not as_json else ():
        if several:
            click.echo(f"{path}:")
        _print_report(report)
    if any(report.problem_count for report in reports.values()):
        raise click.exceptions.Exit(1)


def _verified(store: str, files: list[LogFile], *, as_json: bool) -> Report:
    size = sum(file.size for file in files)
    with click.progressbar(length=size, label="reading the log", file=sys.stderr, hidden=as_json) as bar:
        return verify(real_world().disk, store, bar.update, files)


def _print_report(report: Report) -> None:
    click.echo(f"{report.records} records in {report.queues} queues, physical offsets {report.begin} to {report.end}")
    if report.units_missing:
        click.echo(f"{report.units_missing} records have no queue entry yet; a broker makes it when it starts")
    for problem in report.problems:
        click.echo(problem)
    if report.problem_count > len(report.problems):
        click.echo(f"... and {report.problem_count - len(report.problems)} more")
    if not report.problem_count:
        click.echo("sound")


@command.command("cut")
@directory
@click.option("--at", "offset", type=click.IntRange(min=0), help="The first physical offset to give up.")
@click.option("--missing", is_flag=True, help="Give up the files that are missing at the beginning or the end of the log.")
@click.option("--commitlog", type=click.Path(exists=True, file_okay=False), help="The log, as storePathCommitLog says.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cut(store: str, offset: int | None, missing: bool, commitlog: str | None, yes: bool) -> None:
    """Cut the log at a physical offset and give up all that follows; the files are moved aside as they were.

    Use it for a broker that refuses to start because the record there is damaged, when neither a slave nor a backup has it,
    and for a slave that has more than its master, if that may be lost. The messages that would be lost are listed first.
    """
    if commitlog is None and any(file.look is look_at_entry for file in _log_of(store)):
        raise click.ClickException(
            f"{store} has a ledger of a DLedger group, which only its leader truncates. Nothing was cut. Let the node begin "
            "with an empty store, as a new member that the leader fills; if it is the last one, restore a backup"
        )
    if (offset is None) is not missing:
        raise click.UsageError("one of --at and --missing is needed")
    disk, root = real_world().disk, store.rstrip("/")
    with ending_with_reason(disk):
        if offset is None:
            if not yes:
                click.confirm(f"Let {store} begin and end where its files do, whatever is missing?", abort=True)
            accept_missing(disk, root)
            click.echo("the next start takes the log as it is")
            return
        _print_losses(losses_of(disk, root, offset, commitlog))
        if not yes:
            click.confirm(f"Cut all this from {store}?", abort=True)
        done = cut_log(disk, root, offset, commitlog)
    click.echo(f"cut {done.dropped_bytes} bytes, the files as they were are in {done.aside}")
    click.echo("the broker brings queues and index into line when it starts")


def _print_losses(losses: Losses) -> None:
    for (topic, queue_id), loss in sorted(losses.queues.items()):
        click.echo(f"{topic} queue {queue_id}: {loss.messages} messages, offsets {loss.first_offset} to {loss.last_offset}")
    if losses.damaged:
        click.echo(
            f"{losses.damaged} places where no sound record begins: the content of {losses.unknown_bytes} bytes is unknown"
        )
    if not losses.queues and not losses.damaged:
        click.echo("no message")


command.add_command(backup)
command.add_command(verify_backup)
command.add_command(restore)
command.add_command(reset_peers)
command.add_command(to_classic)
