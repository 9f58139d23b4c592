"""`ledgermq pipeline`: jobs on Spark. Spark is imported only when a job runs, so that help and completion are fast."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..pipeline.errors import BadOption, BadSchema, DataLoss, NoSpark, PipelineError, UnknownTopic
from ..pipeline.registration import check_installed
from ..pipeline.session import session
from .clients import json_option, pairs
from .output import print_json, table
from .spark_log import SparkLog, describe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])

DIFFERENT, WRONG_USAGE, DATA_LOSS, ENGINE_FAILED, INTERRUPTED = 1, 2, 3, 4, 130
"""Exit statuses."""
_POLL_SECONDS = 0.5


@click.group("pipeline")
def command() -> None:
    """Jobs on Spark over topics: archive, replay, stream, stats, audit, dlq, compact.

    They run on this machine unless --master names a cluster. They read messages through brokers (--namesrv) or from the files
    of a store (--store). Exit status: 0 success, 1 differences found, 2 wrong usage, 3 messages were lost, 4 Spark or a server
    failed, 130 interrupted.
    """


def engine_options(function: Command) -> Command:
    """Add the flags that say how Spark runs."""
    for option in reversed(
        (
            click.option("--master", metavar="URL", help="A Spark master; all cores of this machine by default."),
            click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
            click.option("--progress/--no-progress", default=None, help="Show the progress; by default on a terminal."),
        )
    ):
        function = option(function)
    return function


def source_options(function: Command) -> Command:
    """Add the flags that say which messages are read, for jobs that end."""
    end = click.option("--until", "end", metavar="TIME", help="Messages stored at this time or later are not read.")
    return stream_options(end(function))


def stream_options(function: Command) -> Command:
    """Add the flags that say where messages are read, and from which time on."""
    for option in reversed(
        (
            click.option("--namesrv", envvar="LEDGERMQ_NAMESRV", metavar="HOST:PORT", help="Name servers of the brokers."),
            click.option("--store", metavar="DIR[,DIR]", help="Stores to read without a broker."),
            click.option(
                "--from",
                "start",
                metavar="TIME",
                help="Read from this time on: ISO 8601, in UTC unless it names a time zone, or ms since 1970.",
            ),
            click.option(
                "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the source; repeatable."
            ),
        )
    ):
        function = option(function)
    return function


def source_of(
    topics: Iterable[str], namesrv: str | None, store: str | None, start: str | None, end: str | None, options: Iterable[str]
) -> dict[str, str]:
    """Return the options of the source for the flags. A store has priority over a name server from the environment."""
    if store is None and namesrv is None:
        raise click.UsageError("say where messages are: --namesrv HOST:PORT, or --store DIR")
    found = {"storePath": store} if store is not None else {"nameServer": str(namesrv)}
    listed = ",".join(topics)
    if listed:
        found["subscribe"] = listed
    if start is not None:
        found["startingTimestamp"] = start
    if end is not None:
        found["endingTimestamp"] = end
    return {**found, **pairs(tuple(options), "--option")}


def security_of(options: Iterable[str]) -> dict[str, str]:
    """Return those options of a source that a sink in the same cluster needs as well: TLS and access keys."""
    given = pairs(tuple(options), "--option")
    return {key: value for key, value in given.items() if key.lower().startswith(_SECURITY)}


_SECURITY = ("tls.", "accesskey", "secretkey", "securitytoken")


@contextmanager
def engine(name: str, master: str | None, conf: Iterable[str], progress: bool | None) -> Generator[SparkSession]:
    """Run a session for one job; its failure becomes one line and an exit status."""
    settings = pairs(tuple(conf), "--conf")
    watched = sys.stderr.isatty() if progress is None else progress
    try:
        check_installed()
    except NoSpark as error:
        raise _failure(str(error), ENGINE_FAILED) from error
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if watched:
        click.echo("starting Spark ...", err=True)
    running = SparkSession.getActiveSession()
    log = SparkLog.create()
    with log.watched():
        try:
            spark = session(master, name=f"ledgermq {name}", conf=settings, log_path=log.path)
        except PipelineError as error:
            raise _failure(str(error), ENGINE_FAILED) from error
        except KeyboardInterrupt:
            raise _Interrupted("interrupted before Spark had started. Nothing was read or written") from None
        except Exception as error:
            describe("Spark did not start", error)
            raise _failure(f"Spark did not start: {plain(error)}. {log.keep()}", ENGINE_FAILED) from error
        try:
            with _shown(spark, name) if watched else nullcontext():
                yield spark
        except KeyboardInterrupt:
            raise _Interrupted(f"{name} was interrupted") from None
        except click.ClickException:
            raise
        except Exception as error:
            raise _explained(error, name, log) from error
        finally:
            if running is None:
                _stop(spark)


def _stop(spark: SparkSession) -> None:
    """End a session; if its JVM has died, there is nothing left to end, and the command fails for that reason already."""
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001 - whatever Py4J raises about a lost connection
        describe("the session could not be stopped", error)


def _explained(error: Exception, name: str, log: SparkLog) -> click.ClickException:
    """Return what a command says about a failure, with its exit status. What nobody expected is described in the log."""
    kind, text = (type(error).__name__, str(error)) if isinstance(error, PipelineError) else own_error(error) or ("", "")
    if not kind:
        describe(f"{name} failed", error)
        return _failure(f"{name} failed: {plain(error)}. {log.keep()}", ENGINE_FAILED)
    if kind in (BadOption.__name__, BadSchema.__name__, UnknownTopic.__name__):
        return click.UsageError(text) if isinstance(error, PipelineError) else _failure(text, WRONG_USAGE)
    return _failure(text, DATA_LOSS if kind == DataLoss.__name__ else ENGINE_FAILED)


class _DataLost(click.ClickException):
    exit_code = DATA_LOSS


class _EngineFailed(click.ClickException):
    exit_code = ENGINE_FAILED


class _WrongUsage(click.ClickException):
    exit_code = WRONG_USAGE


class _Interrupted(click.ClickException):
    exit_code = INTERRUPTED


def _failure(text: str, status: int) -> click.ClickException:
    return {DATA_LOSS: _DataLost, WRONG_USAGE: _WrongUsage}.get(status, _EngineFailed)(text)


def plain(error: Exception) -> str:
    """Return the line of a failure of Spark or Python that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):  # how Py4J begins; Java follows
        lines = [lines[1].removeprefix(": ")]
    text = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{type(error).__name__}: {text}" if isinstance(error, LookupError) else text  # whose text is a bare key


def own_error(error: Exception) -> tuple[str, str] | None:
    """Return the class and the text of our own error in a failure of Spark; None if there is none."""
    marker = "ledgermq.pipeline.errors."
    for line in str(error).splitlines():
        if marker in line:
            kind, _, text = line.partition(marker)[2].removesuffix(" SQLSTATE: 38000").strip().partition(": ")
            return kind, text
    return None


@contextmanager
def _shown(spark: SparkSession, name: str) -> Generator[None]:
    """Show on standard error how many tasks of a job are finished, in one line that is updated."""
    ended = threading.Event()

    def show() -> None:
        tracker, began = spark.sparkContext.statusTracker(), time.monotonic()
        while not ended.wait(_POLL_SECONDS):
            infos = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
            done, total = sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos)
            doing = f"{done} of {total} tasks" if total else "planning"
            click.echo(f"\r{name}: {doing}, {time.monotonic() - began:.0f} s   ", nl=False, err=True)
        click.echo("\r" + " " * 60 + "\r", nl=False, err=True)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Compute a table of Spark that describes messages and so has few rows."""
    return [{name: _shown_cell(value) for name, value in row.asDict().items()} for row in frame.collect()]


def show_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print a table. This is done when Spark has ended, because a closed pipe is no failure of Spark."""
    if as_json:
        print_json(rows)
    elif rows:
        click.echo(table(rows))
    else:
        click.echo("nothing", err=True)


def _shown_cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str | bool) else str(value)


tasks_option = click.option(
    "--tasks",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="How many tasks send; with a checkpoint always the same number.",
)


@command.command("archive")
@click.argument("topics", nargs=-1, required=True)
@click.option("--to", required=True, metavar="DIR", help="Where Parquet files go, by topic and day.")
@click.option("--watch", is_flag=True, help="Continue with new messages until interrupted.")
@click.option("--compression", type=click.Choice(["zstd", "snappy", "none"]), default="zstd", show_default=True)
@source_options
@engine_options
@json_option
def archive_command(
    topics: tuple[str, ...], to: str, watch: bool, compression: str, namesrv: str | None, store: str | None, start: str | None,
    end: str | None, options: tuple[str, ...], master: str | None, conf: tuple[str, ...], progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Write the new messages of topics to Parquet files; each run continues where the last one ended."""
    source = source_of(topics, namesrv, store, start, end, options)
    with engine("archive", master, conf, progress) as spark:
        from ..pipeline.jobs.archive import archive  # noqa: PLC0415

        done = archive(spark, source, to, watch=watch, compression=compression)
    if as_json:
        print_json({"rounds": done.rounds, "rows": done.rows, "files": done.files, "bytes": done.bytes})
    else:
        click.echo(f"{done.rows} messages in {done.files} files, {done.bytes} bytes" if done.rounds else "nothing is new")


@command.command("replay")
@click.argument("directory")
@click.option("--topic", help="The destination; by default the topic that each message came from.")
@click.option("--keep-queues/--any-queue", default=True, show_default=True, help="Send to the queue of the same number.")
@click.option("--where", metavar="SQL", help="A condition on the archive's columns, such as \"dt >= '2026-01-01'\".")
@click.option("--namesrv", envvar="LEDGERMQ_NAMESRV", required=True, metavar="HOST:PORT", help="Name servers of the brokers.")
@click.option("--checkpoint", metavar="DIR", help="Lets an interrupted replay be started again; nothing is sent twice.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the sink; may be repeated.")
@tasks_option
@engine_options
def replay_command(
    directory: str, topic: str | None, keep_queues: bool, where: str | None, namesrv: str, checkpoint: str | None,
    options: tuple[str, ...], tasks: int, master: str | None, conf: tuple[str, ...], progress: bool | None,
) -> None:  # fmt: skip
    """Send archived messages again, in the order of each queue."""
    target = {"nameServer": namesrv, **({"checkpointLocation": checkpoint} if checkpoint is not None else {})}
    target |= pairs(options, "--option")
    with engine("replay", master, conf, progress) as spark:
        from ..pipeline.jobs.copies import replay  # noqa: PLC0415

        count = replay(spark, directory, target, topic=topic, keep_queues=keep_queues, where=where, tasks=tasks)
    click.echo(f"{count} messages")


@command.command("stream")
@click.argument("topics", nargs=-1, required=True)
@click.option("--to", "target_topic", metavar="TOPIC", help="A topic to write to.")
@click.option("--to-namesrv", metavar="HOST:PORT", help="Its name servers; those that are read from by default.")
@click.option("--sink", metavar="FORMAT", help="Another sink of Spark, such as parquet or console.")
@click.option("--sink-option", "sink_options", multiple=True, metavar="KEY=VALUE", help="An option of the sink; repeatable.")
@click.option("--sql", help="Reads the view `input`; for a topic its result needs a column `body`.")
@click.option(
    "--watermark",
    metavar="'COLUMN DELAY'",
    help="A column and how late messages may be, such as 'storeTimestamp 10 seconds'.",
)
@click.option("--trigger", metavar="INTERVAL", help="How often a batch begins, such as '1 second'; at once by default.")
@click.option("--available-now", is_flag=True, help="End when all that is there has been read; not with --trigger.")
@click.option("--checkpoint", required=True, metavar="DIR", help="The directory in which the query stores its progress.")
@stream_options
@engine_options
def stream_command(
    topics: tuple[str, ...], target_topic: str | None, to_namesrv: str | None, sink: str | None, sink_options: tuple[str, ...],
    sql: str | None, watermark: str | None, trigger: str | None, available_now: bool, checkpoint: str, namesrv: str | None,
    store: str | None, start: str | None, options: tuple[str, ...], master: str | None, conf: tuple[str, ...],
    progress: bool | None,
) -> None:  # fmt: skip
    """Copy topics to a topic or another sink, exactly once, through SQL if wanted.

    A new query begins with the messages that are sent from now on, unless --from or --option startingOffsets=earliest is given.
    """
    if (target_topic is None) == (sink is None):
        raise click.UsageError("say where to: either --to TOPIC or --sink FORMAT")
    if trigger is not None and available_now:
        raise click.UsageError("--trigger and --available-now exclude each other; nothing was read or written")
    source = source_of(topics, namesrv, store, start, None, options)
    target: Mapping[str, str] = pairs(sink_options, "--sink-option")
    if target_topic is not None:
        if to_namesrv is None and namesrv is None:
            raise click.UsageError("a topic is written through brokers: give --to-namesrv HOST:PORT")
        shared = security_of(options) if to_namesrv is None else {}
        target = {"nameServer": to_namesrv or str(namesrv), "topic": target_topic, **shared, **target}
    with engine("stream", master, conf, progress) as spark:
        from ..pipeline.jobs.copies import stream  # noqa: PLC0415
        from ..pipeline.jobs.places import FORMAT, sole_user  # noqa: PLC0415

        with sole_user(checkpoint):
            query = stream(
                spark, source, target, checkpoint=checkpoint, sql=sql, target_format=sink or FORMAT, watermark=watermark,
                trigger=trigger, available_now=available_now,
            )  # fmt: skip
            try:
                query.awaitTermination()
            except KeyboardInterrupt:
                query.stop()
                raise


def _picture_path(_context: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Check where a picture is to be written before anything is read."""
    if path is not None:
        if not path.endswith((".png", ".svg")):
            raise click.BadParameter(f"{path!r}: a picture is written as .png or .svg")
        directory = os.path.dirname(os.path.abspath(path))
        if not os.access(directory, os.W_OK):
            raise click.BadParameter(f"{path!r}: nothing can be written to {directory}")
    return path


@command.command("stats")
@click.argument("topics", nargs=-1, required=True)
@click.option("--window", metavar="INTERVAL", help="Length of a window; 1 minute, or with --plot what suits the picture.")
@click.option("--by", type=click.Choice(["window", "queue", "key"]), default="window", show_default=True, help="Which table.")
@click.option("--plot", callback=_picture_path, metavar="FILE.png|.svg", help="Draw all three tables into a file as well.")
@source_options
@engine_options
@json_option
def stats_command(
    topics: tuple[str, ...], window: str | None, by: str, plot: str | None, namesrv: str | None, store: str | None,
    start: str | None, end: str | None, options: tuple[str, ...], master: str | None, conf: tuple[str, ...],
    progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Show rates and latencies from born to stored by window, or how messages are spread over queues or keys."""
    source = source_of(topics, namesrv, store, start, end, options)
    with engine("stats", master, conf, progress) as spark:
        from ..pipeline.jobs.stats import stats  # noqa: PLC0415

        found = stats(spark, source, window=window or "1 minute")
        if plot is not None:
            from ..pipeline.jobs.picture import picture  # noqa: PLC0415

            picture(spark, source, window=window).save(plot)
        rows = rows_of({"window": found.windows, "queue": found.queues, "key": found.keys}[by])
    show_rows(rows, as_json=as_json)


@command.command("audit")
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@engine_options
@json_option
def audit_command(
    stores: tuple[str, ...], master: str | None, conf: tuple[str, ...], progress: bool | None, as_json: bool
) -> None:
    """Compare the stores of replicas with each other and with their checksums; exit status 1 if anything differs."""
    with engine("audit", master, conf, progress) as spark:
        from ..pipeline.jobs.audit import audit  # noqa: PLC0415

        found = audit(spark, [store.rstrip("/") for store in stores])
    if as_json:
        print_json(
            {
                "begin": found.begin, "end": found.end, "ends": found.ends, "problems": found.problems,
                "differences": [str(difference) for difference in found.differences], "sound": found.sound,
            }
        )  # fmt: skip
    else:
        click.echo(f"compared physical offsets {found.begin} to {found.end} of {len(stores)} stores")
        for difference in found.differences:
            click.echo(str(difference))
        for store, problems in found.problems.items():
            for problem in problems:
                click.echo(f"{store}: {problem}")
        if found.sound:
            click.echo("sound, and the same" if len(stores) > 1 else "sound")
    if not found.sound:
        raise click.exceptions.Exit(DIFFERENT)


@command.command("dlq")
@click.argument("group")
@click.option("--redrive", is_flag=True, help="Send the messages to the topics that they came from.")
@click.option("--checkpoint", metavar="DIR", help="With it an interrupted redrive can be started again; nothing is sent twice.")
@tasks_option
@source_options
@engine_options
@json_option
def dlq_command(
    group: str, redrive: bool, checkpoint: str | None, tasks: int, namesrv: str | None, store: str | None, start: str | None,
    end: str | None, options: tuple[str, ...], master: str | None, conf: tuple[str, ...], progress: bool | None, as_json: bool,
) -> None:  # fmt: skip
    """Show the messages that a group could not consume, and why; or send them back."""
    source = source_of((), namesrv, store, start, end, options)
    if redrive and namesrv is None:
        raise click.UsageError("messages are sent through brokers: give --namesrv HOST:PORT")
    with engine("dlq", master, conf, progress) as spark:
        from ..pipeline.jobs.letters import dead_letters, summary  # noqa: PLC0415
        from ..pipeline.jobs.letters import redrive as send_back  # noqa: PLC0415

        letters = dead_letters(spark, source, group)
        target = {"nameServer": str(namesrv), **({"checkpointLocation": checkpoint} if checkpoint is not None else {})}
        target |= security_of(options)
        count = send_back(letters, target, tasks=tasks) if redrive else 0
        rows = [] if redrive else rows_of(summary(letters))
    if not redrive:
        show_rows(rows, as_json=as_json)
    elif as_json:
        print_json({"group": group, "messages": count})
    else:
        click.echo(f"{count} messages")


@command.command("compact")
@click.argument("topics", nargs=-1, required=True)
@click.option("--by", default="keys", show_default=True, help="The column with the key.")
@click.option(
    "--to", required=True, metavar="DIR", help="Where Parquet files of the newest messages go; replaces the last ones."
)
@source_options
@engine_options
def compact_command(
    topics: tuple[str, ...], by: str, to: str, namesrv: str | None, store: str | None, start: str | None, end: str | None,
    options: tuple[str, ...], master: str | None, conf: tuple[str, ...], progress: bool | None,
) -> None:  # fmt: skip
    """Write the newest message of every key; keys whose newest message is empty are left out."""
    source = source_of(topics, namesrv, store, start, end, options)
    with engine("compact", master, conf, progress) as spark:
        from ..pipeline.jobs.compaction import compact_to  # noqa: PLC0415

        count = compact_to(spark, source, to, by=by)
    click.echo(f"{count} keys")
