"""What the Makefile gives to pip in place of `ledgermq[test]`, which pip cannot read before `ledgermq` is built."""

from __future__ import annotations

from harness.requirements import requirements


def test_an_extra_needs_what_the_extras_that_it_names_need() -> None:
    """`ledgermq` itself is left out: pip would build the one that is published."""
    extras = {"all": ["a[b]>=1", "us[one,two]"], "one": ["c; sys_platform != 'win32'"], "two": ["us[three]"], "three": ["d<2"]}

    found = list(requirements({"name": "us", "optional-dependencies": extras}, "all"))

    assert found == ["a[b]>=1", "c; sys_platform != 'win32'", "d<2"]
