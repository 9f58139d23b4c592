"""The public names: what is promised is there, and importing costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import ledgermq
from ledgermq import aio, blocking
from ledgermq.client import errors
from ledgermq.client.admin import errors as admin_errors


def test_every_public_name_is_there() -> None:
    """Each name of the table can be imported, and is listed."""
    for name in ledgermq.__all__:
        assert getattr(ledgermq, name) is not None
        assert name in dir(ledgermq)
    with pytest.raises(AttributeError, match="no attribute 'open_sesame'"):
        _ = ledgermq.open_sesame  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_the_errors_of_clients_are_public() -> None:
    """Whatever a client raises can be caught by a name at the root."""
    raised = {
        name
        for module in (errors, admin_errors)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, errors.ClientError) and value.__module__ == module.__name__
    }

    assert raised <= set(ledgermq.__all__)


@pytest.mark.parametrize("module", [blocking, aio])
def test_clients_in_threads_have_signatures_of_their_own(module: ModuleType) -> None:
    """An editor shows what can be given; `**options` would show nothing."""
    for name in module.__all__:
        for method, function in inspect.getmembers(getattr(module, name), inspect.isfunction):
            if method in ("create_group", "update_group"):  # any setting of a group
                continue
            kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds, f"{name}.{method}"


def test_importing_loads_nothing_else() -> None:
    """Neither trio nor any part of ours is imported before a name is used."""
    program = (
        "import sys, ledgermq; print(*(name for name in sys.modules if name.split('.')[0] in ('trio', 'attrs', 'ledgermq')))"
    )

    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env={"PYTHONPATH": "src"})

    assert run.stdout.split() == ["ledgermq"]
