"""The file that takes what Spark and its workers print while a command runs, and the warnings in it.

A worker that skips messages because `failOnDataLoss` or `mode` accept it can only write to its standard error, which is this
file. The warnings are shown on the terminal, so that nothing is skipped silently. What libraries log in this process, such as
Py4J when Ctrl-C interrupts a call, goes to the file too.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import attrs
import click

from ..pipeline.errors import WARNING

WARNINGS_MAX = 20
"""How many different warnings are shown. The log is kept if there are more."""
_POLL_SECONDS = 0.5


@attrs.define(eq=False)
class SparkLog:
    """One log file in the temporary directory. It is removed when the command has ended, unless it is needed."""

    path: str
    _is_kept: bool = False
    _position: int = 0
    _shown: set[str] = attrs.field(factory=set[str])

    @classmethod
    def create(cls) -> SparkLog:
        descriptor, path = tempfile.mkstemp(prefix="ledgermq-spark-", suffix=".log")
        os.close(descriptor)
        return cls(path)

    def keep(self) -> str:
        """Keep the file, and return the sentence that names it."""
        self._is_kept = True
        return f"What Spark printed is in {self.path}"

    @contextmanager
    def watched(self) -> Generator[None]:
        """Show warnings on standard error while they are written, each one once; remove the file at the end."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_POLL_SECONDS):
                self._show_new()

        thread = threading.Thread(target=watch, name="warnings of Spark's workers", daemon=True)
        thread.start()
        handler = logging.FileHandler(self.path, encoding="utf-8")
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
            handler.close()
            ended.set()
            thread.join()
            self._show_new()
            if not self._is_kept:
                with suppress(FileNotFoundError):
                    os.remove(self.path)

    def _show_new(self) -> None:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self._position)
            whole, newline, _ = file.read().rpartition(b"\n")
            self._position += len(whole) + len(newline)
            for raw in whole.splitlines():
                line = raw.decode("utf-8", "replace")
                if line.startswith(WARNING) and line not in self._shown:
                    self._show(line)

    def _show(self, line: str) -> None:
        if len(self._shown) < WARNINGS_MAX:
            self._shown.add(line)
            click.echo(line, err=True)
        elif not self._is_kept:
            click.echo(f"{WARNING}there are more warnings. {self.keep()}", err=True)


def describe(text: str, error: BaseException) -> None:
    """Write the traceback of an error that nobody expected into the log file of the command that runs."""
    logging.getLogger(__name__).error("%s", text, exc_info=error)
