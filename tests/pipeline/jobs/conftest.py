"""Commands that run in the tests' own process and session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from ledgermq.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def pipeline_command(spark: SparkSession) -> Callable[..., Result]:
    """Runs `ledgermq pipeline` with arguments and expects an exit status; a command uses the session that is active."""

    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner(env={"LEDGERMQ_NAMESRV": ""}).invoke(main, ["pipeline", *arguments])
        assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
        return result

    return run
