"""Print what an extra of `ledgermq` needs but `ledgermq` itself, so that pip can fetch it while `ledgermq` is being built."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extra: str) -> Iterator[str]:
    """The requirements of an extra and of the extras that it names, each in the syntax of pip."""
    for each in project["optional-dependencies"][extra]:
        if each.startswith(own := f"{project['name']}["):
            for name in each.removeprefix(own).removesuffix("]").split(","):
                yield from requirements(project, name)
        else:
            yield each


if __name__ == "__main__":
    found = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*found["dependencies"], *requirements(found, sys.argv[1]), sep="\n")  # noqa: T201 - its output
