"""The page of RocketMQ's names says where things are: every name of ours on it exists."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from types import ModuleType

import pytest

from .snippets import ROOT

ROWS = re.findall(r"^\| ([^`|]+?) \| (.*) \|$", (ROOT / "docs/names.md").read_text("utf-8"), re.MULTILINE)
"""The classes of RocketMQ, and what the page says of them."""
NOTHING = "\N{EN DASH}"
OURS = sorted({name for _, text in ROWS for name in re.findall(r"`((?:store|ha|broker|namesrv|client|world)\.[\w.]+)`", text)})


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_ours_exists(name: str) -> None:
    """Renaming a class without the page would send readers nowhere."""
    folder, *parts = name.split(".")
    module = import_module(f"ledgermq.{folder}")
    assert reduce(_member, parts, module) is not None


def _member(parent: object, part: str) -> object:
    """An attribute, or a module that nobody has imported yet."""
    if not hasattr(parent, part) and isinstance(parent, ModuleType):
        return import_module(f"{parent.__name__}.{part}")
    return getattr(parent, part)


def test_a_class_of_rocketmqs_has_a_name_of_ours_or_a_reason() -> None:
    """A row without either would be of no use."""
    answers = [row.split(" | ") for _, row in ROWS if not row.startswith(("here", "native", "---"))]
    assert len(answers) > 70
    assert [row for row in answers if not (row[0].startswith("`") or (row[0] == NOTHING and len(row[1]) > 10))] == []
