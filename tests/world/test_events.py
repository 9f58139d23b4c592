"""What a program that uses the library sees of its events, without and with logging of its own."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from pathlib import Path

from ledgermq.testing.logs import capture_logs, logs_silenced
from ledgermq.world.events import get_logger

ROOT = Path(__file__).parents[2]


def test_an_event_is_one_line_with_its_fields() -> None:
    """Whatever formatter a program has chosen; its own formatters find name and fields apart, and where it was logged."""
    records: list[logging.LogRecord] = []
    handler = logging.StreamHandler(text := io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(filename)s %(message)s"))
    handler.addFilter(lambda record: records.append(record) or True)
    logger = logging.getLogger("ledgermq.tests")
    logger.addHandler(handler)
    try:
        get_logger("ledgermq.tests").warning("queue_lost", queue="t@b:0", offset=7)
    finally:
        logger.removeHandler(handler)

    assert text.getvalue() == "WARNING ledgermq.tests test_events.py queue_lost queue='t@b:0' offset=7\n"
    assert vars(records[0])["event"] == "queue_lost"
    assert vars(records[0])["fields"] == {"queue": "t@b:0", "offset": 7}


def test_bound_fields_are_in_every_event() -> None:
    """A logger of a connection or a group names it in each event; the module's own logger stays as it is."""
    log = get_logger("ledgermq.tests")
    bound = log.bind(group="shop").bind(remote="127.0.0.1:9")

    with capture_logs() as logs:
        bound.info("offset_reset", offset=7)
        log.info("offset_reset", offset=8)

    assert logs == [
        {"event": "offset_reset", "log_level": "info", "group": "shop", "remote": "127.0.0.1:9", "offset": 7},
        {"event": "offset_reset", "log_level": "info", "offset": 8},
    ]


def test_structlog_is_configured_and_imported_for_nobody_but_us() -> None:
    """A program that uses structlog keeps its own settings, and one that wants no events does not pay for the import."""
    program = (
        "import sys\n"
        "from ledgermq.world.events import get_logger\n"
        "log = get_logger('ledgermq.some')\n"
        "log.info('nobody_wants_this')\n"
        "print('structlog' in sys.modules)\n"
        "log.warning('wanted')\n"
        "import structlog\n"
        "print(structlog.is_configured())\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "False"]


def test_a_program_that_asks_for_nothing_sees_only_warnings_on_standard_error() -> None:
    """Standard output is the program's own."""
    program = (
        "from ledgermq.world.events import get_logger\n"
        "log = get_logger('ledgermq.some')\n"
        "log.debug('a'); log.info('b'); log.warning('c', field=1)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("", "c field=1\n")


def test_what_is_captured_goes_nowhere_else() -> None:
    """Tests look at events of all levels; afterwards the logger is as it was."""
    log = get_logger("ledgermq.tests")

    with capture_logs() as logs:
        log.debug("one", value=1)
        log.error("two")
    with capture_logs() as silenced, logs_silenced():
        log.error("three")

    assert logs == [
        {"event": "one", "log_level": "debug", "value": 1},
        {"event": "two", "log_level": "error"},
    ]
    assert silenced == []


def test_nothing_else_prints_or_logs() -> None:
    """Every module logs through this one, so that one logger's settings hold for all of them.

    The modules named here only decide where events go, or what libraries log.
    """
    deciding = ("world/events.py", "testing/logs.py", "cli/logs.py", "cli/spark_log.py", "cli/dashboard/start.py")
    folders = ("world", "message", "remoting", "store", "ha", "client", "broker", "namesrv", "testing", "cli")
    wrong = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for folder in folders
        for path in sorted((ROOT / "src" / "ledgermq" / folder).rglob("*.py"))
        if path.relative_to(ROOT / "src" / "ledgermq").as_posix() not in deciding
        for match in re.finditer(r"^.*(import structlog|from structlog|import logging\b).*$", path.read_text(), re.MULTILINE)
    ]
    assert wrong == []
