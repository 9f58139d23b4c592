"""Refuse to build from a checkout without symbolic links: it would give a package without its modules, and say nothing."""

import sys
from pathlib import Path

from setuptools import setup

if not (Path(__file__).parent / "src" / "ledgermq" / "broker").is_dir():
    sys.exit(
        "src/ledgermq has text files where it needs symbolic links, so nothing was built. Run `git config core.symlinks true` "
        "and `git checkout -- src` here (on Windows with Developer Mode on), or install a wheel that was built elsewhere."
    )
setup()
