"""The code blocks of the documentation, run one after the other as a reader does who goes through a page.

A page has a cluster, a directory and a namespace of its own, so that its blocks build on each other. The cluster is one broker,
or what `cluster:` at the beginning of the page names.

- `python`: a program, or a part of one. If it awaits at its outermost level, it runs in an event loop, asyncio's if it mentions
  `aio`, else trio's; there `producer`, `consumer`, `pull` and `admin` are clients unless the page has made its own. A consumer
  finds messages in `orders`, and is stopped when it has read all of them. A block with tests is run by pytest. What a block
  prints is compared with the block `text` behind it; forms of one program for several kinds of clients may share one.
- `console`: commands after `$`, each with what it prints.
- `properties`: a configuration of a broker, whose keys are known and allowed.
"""

from __future__ import annotations

import ast
import asyncio
import io
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager, redirect_stdout
from functools import partial
from inspect import CO_COROUTINE
from pathlib import Path
from typing import Any

import attrs
import trio

import ledgermq
from ledgermq import ConsumeFrom, Message, aio
from ledgermq.broker.config import read_broker_conf
from ledgermq.testing.embedded import StartedEmbedded, start_embedded

ROOT = Path(__file__).parents[2]
NAMESRV = "127.0.0.1:9876"
"""The address in the documentation."""
SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"swordfish"}',
}
"""The settings of a broker with the first user of the documentation."""
SECONDS_MAX = 120
MESSAGES = 8

_FENCED = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SHAPES = (
    (r" --namesrv \S+", ""),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", "TIME"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\d+(\.\d+)?", "N"),
    (r"\bPython\b(?= +N)", "compiled"),  # where no compiler was at hand
    (r" +", " "),
)
"""What may differ from run to run, and what stands for it."""


@attrs.frozen
class Block:
    """One code block of a page."""

    language: str
    code: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """The code blocks of a page, without their indentation."""
    return [
        Block(found[2], re.sub(f"^{found[1]}", "", found[3], flags=re.MULTILINE), text.count("\n", 0, found.start()) + 1)
        for found in _FENCED.finditer(text)
    ]


@contextmanager
def cluster_for(text: str) -> Generator[StartedEmbedded]:
    """The cluster that a page is about; of a DLedger group, the first node leads."""
    if text.startswith("---\ncluster: secured\n---\n"):
        with start_embedded(settings=SECURED) as cluster:
            yield cluster
        return
    found = re.match(r"---\ncluster: dledger (\d+)\n---\n", text)
    if not found:
        with start_embedded() as cluster:
            yield cluster
        return
    with start_embedded(mode="dledger", nodes=int(found[1]), settings={"preferredLeaderId": "n0"}) as cluster:
        while cluster.master() != cluster.addresses[0]:
            time.sleep(0.05)
        yield cluster


def shape(text: str) -> list[str]:
    """The lines of an output without what may differ: ids, times, addresses, numbers and widths of columns."""
    for pattern, replacement in _SHAPES:
        text = re.sub(pattern, replacement, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def steps_of(console: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    parts = re.split(r"^\$ (.*)\n", console, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def environment(home: Path, namesrv: str = "") -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHON": sys.executable,
        "HOME": str(home),
        "LEDGERMQ_NAMESRV": namesrv,
    }


def run_in_shell(command: str, home: Path, namesrv: str) -> str:
    """What a command prints on a terminal."""
    done = subprocess.run(
        ["bash", "-c", f'ledgermq() {{ "$PYTHON" -m ledgermq.cli.main "$@"; }}; {command}'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home, namesrv),
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def check_console(console: str, home: Path, namesrv: str) -> int:
    """Run the commands of a console block and compare what they print; returns how many there are."""
    steps = steps_of(console)
    for command, expected in steps:
        printed = run_in_shell(command, home, namesrv)
        assert shape(printed) == shape(expected), f"{command}\n{printed}"
    return len(steps)


def run_page(name: str, text: str, cluster: StartedEmbedded, home: Path) -> int:
    """Run all blocks of a page; returns how many were run."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks, tests, ran = blocks_of(text.replace(NAMESRV, cluster.namesrv)), list[Block](), 0
    for number, block in enumerate(blocks):
        behind = [each for each in blocks[number + 1 :] if each.language != "python"][:1]
        where = f"{name}:{block.line}"
        if block.language == "console":
            assert check_console(block.code, home, cluster.namesrv), where
        elif block.language == "properties":
            assert read_broker_conf(block.code).others == {}, where
        elif block.language == "python" and re.search(r"^(async )?def test_", block.code, re.MULTILINE):
            tests.append(block)
        elif block.language == "python":
            printed = _run_python(block, where, namespace, cluster)
            expected = "".join(each.code for each in behind if each.language == "text")
            assert shape(printed) in ([], shape(expected)), where
            assert printed or blocks[number + 1 : number + 2] != behind or not expected, where
        else:
            continue
        ran += 1
    if tests:
        _run_tests(tests, home)
    return ran


def _run_python(block: Block, where: str, namespace: dict[str, Any], cluster: StartedEmbedded) -> str:
    code = compile("\n" * block.line + block.code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with redirect_stdout(printed):
        if code.co_flags & CO_COROUTINE:
            _run_in_loop(block, code, namespace, cluster.namesrv)
        else:
            exec(code, namespace)  # noqa: S102 - it is ours
    return printed.getvalue()


def _run_tests(blocks: list[Block], home: Path) -> None:
    """Run the tests of a page, as their reader does."""
    for block in blocks:
        (home / f"test_line_{block.line}.py").write_text(block.code, encoding="utf-8")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-o", "trio_mode=true", str(home)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(home),
        cwd=home,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _run_in_loop(block: Block, code: types.CodeType, namespace: dict[str, Any], namesrv: str) -> None:
    """Run code that awaits, with the clients that it uses and does not open."""
    in_asyncio = "aio" in block.code
    library: Any = aio if in_asyncio else ledgermq
    openings = {
        "producer": library.open_producer,
        "consumer": partial(
            library.open_consumer, group=f"group-{block.line}", topics="orders", consume_from=ConsumeFrom.FIRST
        ),
        "pull": partial(library.open_pull_consumer, group=f"group-{block.line}"),
        "admin": library.open_admin,
    }
    wanted = (_names_in(code) & openings.keys()) - namespace.keys()

    async def part() -> None:
        async with AsyncExitStack() as stack:
            if wanted & {"consumer", "pull"}:
                sender = await stack.enter_async_context(library.open_producer(namesrv))
                await sender.send_many([Message("orders", b"%d" % number) for number in range(MESSAGES)])
            clients = {name: await stack.enter_async_context(openings[name](namesrv)) for name in sorted(wanted)}
            if "consumer" in clients:
                if in_asyncio:
                    group = await stack.enter_async_context(asyncio.TaskGroup())
                    group.create_task(_stop_when_read(clients["consumer"], asyncio.sleep))
                else:
                    nursery = await stack.enter_async_context(trio.open_nursery())
                    nursery.start_soon(_stop_when_read, clients["consumer"], trio.sleep)
            namespace.update(clients)
            await types.FunctionType(code, namespace)()
            for name in wanted:
                del namespace[name]
            if "consumer" in clients:
                clients["consumer"].stop()

    if in_asyncio:
        asyncio.run(part())
    else:
        trio.run(part)


async def _stop_when_read(consumer: Any, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Stop a consumer that has read everything, or that has been stopped."""
    while not consumer.stopped:
        await sleep(0.05)
        progress = await consumer.progress()
        if progress and not any(each.lag for each in progress.values()):
            consumer.stop()
