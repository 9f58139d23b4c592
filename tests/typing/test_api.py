"""The public names: what is promised is there, and importing costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ledgermq


def test_every_public_name_is_there() -> None:
    """Each name of the table can be imported, and is listed."""
    for name in ledgermq.__all__:
        assert getattr(ledgermq, name) is not None
        assert name in dir(ledgermq)
    with pytest.raises(AttributeError, match="no attribute 'open_sesame'"):
        _ = ledgermq.open_sesame  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_importing_loads_nothing_else() -> None:
    """Neither trio nor any part of ours is imported before a name is used."""
    program = (
        "import sys, ledgermq; print(*(name for name in sys.modules if name.split('.')[0] in ('trio', 'attrs', 'ledgermq')))"
    )

    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env={"PYTHONPATH": "src"})

    assert run.stdout.split() == ["ledgermq"]
