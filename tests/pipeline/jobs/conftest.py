"""Commands that run in the tests' own process and session."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from ledgermq.cli.main import main


@pytest.fixture
def pipeline_command() -> Callable[..., Result]:
    """Runs `ledgermq pipeline` with arguments and expects an exit status."""

    def run(*arguments: str, status: int = 0) -> Result:
        result = CliRunner(env={"LEDGERMQ_NAMESRV": ""}).invoke(main, ["pipeline", *arguments])
        assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
        return result

    return run
