"""Tasks in the processes that read them."""

from __future__ import annotations

import subprocess
import sys

READ = """
import gc
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options
from ledgermq.pipeline.reading import TaskReader
options = read_options({"storePath": "/", "subscribe": "T"}, streaming=False)
assert not [*TaskReader(options, chosen(options.content)).read([])]
print(len(gc.get_objects()) < gc.get_freeze_count())
"""


def test_the_collections_after_tasks_pass_over_the_objects_of_modules() -> None:
    """PySpark collects after each task, and looking through all modules would take a good part of a short one."""
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("True\n", "")
