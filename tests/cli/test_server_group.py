"""Commands about servers that run, below the commands that run them."""

from __future__ import annotations

import pytest

from .processes import Run


@pytest.mark.parametrize(
    ("before", "option"),
    [
        (("broker", "-n", "127.0.0.1:2", "drain", "broker-a"), "-n or --namesrv"),
        (("broker", "--listenPort", "1", "config", "get", "broker-a"), "--listenPort or --listen-port"),
        (("controller", "--port", "2", "status"), "--port"),
    ],
)
def test_an_option_before_the_command_is_refused(runner: Run, before: tuple[str, ...], option: str) -> None:
    """It would be dropped, and another cluster asked than the one that was meant."""
    (name,) = {"drain", "config", "status"} & set(before)

    refused = runner(*before, status=2).stderr

    assert f"{name} does not read an option before it: give {option} behind {name}" in refused


def test_the_environment_counts_for_both(runner: Run) -> None:
    """It is read by the command, too."""
    assert "asked: 127.0.0.1:2" in runner("broker", "drain", "broker-a", status=1, namesrv="127.0.0.1:2").stderr
