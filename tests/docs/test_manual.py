"""The pages of the manual do what they say: every block of Python and every command on them is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attrs
import pytest

import ledgermq
from ledgermq import aio, blocking

from .snippets import ROOT, blocks_of, cluster_for, run_page

DOCS = ROOT / "docs"
SPARK = "session()"
"""A page that starts Spark is run in the session of `tests/pipeline/test_examples.py`."""
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if path.name != "decisions.md"
    and {block.language for block in blocks_of(path.read_text("utf-8"))} & {"python", "console", "properties"}
    and SPARK not in path.read_text("utf-8")
)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_does_what_it_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks are run one after the other, beside a fresh cluster."""
    text = (DOCS / page).read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])  # readers copy from there what a page imports
    with cluster_for(text) as cluster:
        assert run_page(f"docs/{page}", text, cluster, tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("```python\nprint('one')\n```\n```text\ntwo\n```\n", id="prints something else"),
        pytest.param("```python\nprint('one')\n```\n", id="prints what no block shows"),
        pytest.param("```python\none = 'one'\n```\n```text\none\n```\n", id="prints nothing"),
        pytest.param("```python\nawait consumer.get_none()\n```\n", id="calls what is not there"),
        pytest.param("```python\ndef test_one():\n    assert not __name__\n```\n", id="test fails"),
        pytest.param("```console\n$ echo one\ntwo\n```\n", id="command prints something else"),
        pytest.param("```console\n$ ledgermq no-command\n```\n", id="command fails"),
        pytest.param("```properties\nkeyOfNobody=1\n```\n", id="key is unknown"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(wrong: str, tmp_path: Path) -> None:
    """Otherwise the tests above would say nothing."""
    with cluster_for(wrong) as cluster, pytest.raises((AssertionError, AttributeError, ExceptionGroup)):
        run_page("wrong.md", wrong, cluster, tmp_path)


def test_every_public_name_is_in_the_reference() -> None:
    """So that whatever can be imported can be looked up."""
    reference = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    libraries = {"ledgermq": ledgermq, "aio": aio, "blocking": blocking}
    names = {f"{library}.{name}" for library, module in libraries.items() for name in module.__all__}

    assert {name for name in names if not re.search(rf"\b{name}\b", reference)} == set()


def test_no_filter_of_the_reference_hides_a_field_of_a_value() -> None:
    """The filters are for what modules need of each other, as these two, and compare nothing but names."""
    filters = re.findall(r'^ +- "!(\^.*)"$', (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    values = {name: each for name in ledgermq.__all__ if attrs.has(each := getattr(ledgermq, name))}
    fields = {f"{name}.{field.name}" for name, each in values.items() for field in attrs.fields(each) if field.name[0] != "_"}

    assert "ConsumerStatistics.received" in fields
    hidden = {name for name in fields if any(re.search(each, name.partition(".")[2]) for each in filters)}
    assert hidden == {"Broker.host", "Producer.lanes"}


def test_every_page_is_reached_by_the_menu() -> None:
    """A page outside of it would not be found; `make docs` says the same, but is not run for each commit."""
    menu = set(re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))

    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"decisions.md"} == menu
