"""Finds modules that import each other anywhere: at the top, inside a function, or only for type checking.

`python -m harness.import_circles` names every circle and fails if there is one. import-linter checks the layers, but not the
modules of one package, and it does not see imports that only a type checker carries out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
"""The folder with a link to every package."""


def modules(source: Path) -> dict[str, Path]:
    """Every module below a folder, by its dotted name."""
    found: dict[str, Path] = {}
    for folder in sorted(source.iterdir()):
        for path in sorted(_files_below(folder)):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    if folder.suffix == ".py":
        yield folder
    elif folder.is_dir():  # may be a link, which `rglob` does not follow
        for inner in folder.iterdir():
            yield from _files_below(inner)


def imports(known: Mapping[str, Path], name: str) -> set[str]:
    """The known modules that a module imports anywhere in its source."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if known[name].name == "__init__.py" else name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # A name imported from a package is one of its modules, or is defined in its `__init__`.
            found |= {inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names}
    return (found & known.keys()) - {name}


def first_circle(graph: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Modules each of which imports the one before it, ending with the first one again; empty if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def circle_below(source: Path) -> list[str]:
    """`first_circle` of all modules below a folder."""
    known = modules(source)
    return first_circle({name: imports(known, name) for name in known})


def main() -> int:
    """Print a circle if there is one; returns the exit status."""
    circle = circle_below(SOURCE)
    if circle:
        print("these modules import each other in a circle:", " <- ".join(circle))  # noqa: T201
    return 1 if circle else 0


if __name__ == "__main__":
    sys.exit(main())
