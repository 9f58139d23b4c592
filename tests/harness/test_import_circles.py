"""Circles of imports: found however they are written, and none here."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.import_circles import SOURCE, circle_below, modules


def test_all_packages_are_looked_at() -> None:
    """The folders are links."""
    assert {"ledgermq.broker.admin.relay", "ledgermq.world", "harness.fuzz.targets"} <= modules(SOURCE).keys()


@pytest.mark.parametrize(
    "back",
    [
        "from ..p.one import name",
        "from . import one",
        "from p.one import name",
        "import p.one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import name",
        "def later():\n    from .one import name",
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path: Path, back: str) -> None:
    """At the top, for types alone, inside a function, by whatever spelling."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("")
    (tmp_path / "p" / "one.py").write_text("from .two import other\n")
    (tmp_path / "p" / "two.py").write_text(f"{back}\n")

    assert set(circle_below(tmp_path)) == {"p.one", "p.two"}


def test_modules_in_a_row_are_no_circle(tmp_path: Path) -> None:
    """Nor is a module that imports what its own package exports."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "__init__.py").write_text("")
    (tmp_path / "p" / "one.py").write_text("from .two import other\nfrom .three import more\n")
    (tmp_path / "p" / "two.py").write_text("from .three import more\n")
    (tmp_path / "p" / "three.py").write_text("import os\n")

    assert circle_below(tmp_path) == []
