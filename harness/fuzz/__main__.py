"""`python -m harness.fuzz`: a coverage-guided fuzzer (atheris, which is libFuzzer) over every decoder.

Each target of `targets.py` runs in its own process for an equal share of the time, starting with the kept corpus and valid
inputs. An input on which a decoder does what it must not is a finding: it is saved and printed with the command that replays
it, and the exit status is 1. `--keep` adds inputs to the corpus that reach new code, and removes those no longer needed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import os
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import attrs
import trio
import trio.testing

from .corpus import keep, read_inputs
from .judge import INPUT_BYTES_MAX, Target, judge, judging

CORPUS = Path("tests/harness/fuzz/corpus")
FINDINGS = Path(".fuzz")
HANG_SECONDS = 10
RESIDENT_MIB_MAX = 2048
"""libFuzzer ends a target above this memory, which is more than any may use; `judge` checks the bound of each target."""
SECONDS_MIN = 1

_PROGRESS = re.compile(r"^#\d+\s.*cov: (\d+) ft: \d+ corp: (\d+)/", re.MULTILINE)
_EXECUTIONS = re.compile(r"^#(\d+)\s", re.MULTILINE)
_SAVED = re.compile(r"Test unit written to (\S+)")


class Engine(Protocol):
    """The part of atheris that we use; atheris has no type hints and is not installed everywhere."""

    def instrument_imports(self, include: list[str]) -> AbstractContextManager[object]: ...
    def Setup(self, args: list[str], test_one_input: Callable[[bytes], None]) -> None: ...  # noqa: N802 - its name
    def Fuzz(self) -> None: ...  # noqa: N802 - its name


@attrs.frozen
class Run:
    """The result of fuzzing one target."""

    target: str
    executions: int
    coverage: int
    """How many places in our code were reached, as libFuzzer counts them."""
    corpus: int
    """How many inputs libFuzzer kept; each reached code that no other did."""
    finding: Path | None
    """The saved input on which the decoder failed, or None."""
    output: str
    status: int
    """The exit status of its process as `os.wait` returns it; 0 is success."""

    @property
    def failed(self) -> bool:
        return self.finding is not None or self.status != 0


async def _fuzz_in_child(engine: Engine, target: Target, directories: Sequence[Path], seconds: int, seed: int) -> None:
    """Fuzz one target in this process; does not return."""
    flags = {
        "max_total_time": seconds,
        "max_len": INPUT_BYTES_MAX,
        "timeout": HANG_SECONDS,
        "rss_limit_mb": RESIDENT_MIB_MAX,
        "seed": seed,
        "artifact_prefix": f"{FINDINGS}/{target.name}-",
    }
    arguments = [f"-{name}={value}" for name, value in flags.items()]
    with judging():
        async with target.opens() as decode:

            def one_input(data: bytes) -> None:
                try:
                    judge(target, decode, data)
                except Exception:  # noqa: BLE001 - whatever it is, the decoder must not raise it
                    traceback.print_exc()
                    _save(target, data)
                    os._exit(1)

            engine.Setup(["ledgermq-fuzz", *arguments, *map(str, directories)], one_input)
            engine.Fuzz()


def _save(target: Target, data: bytes) -> None:
    path = FINDINGS / f"{target.name}-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    print(f"Test unit written to {path}", file=sys.stderr, flush=True)  # noqa: T201 - as libFuzzer reports a hang


def _start(engine: Engine, target: Target, directories: Sequence[Path], output: Path, seconds: int, seed: int) -> int:
    process = os.fork()  # not a new interpreter: instrumenting all imports takes longer than a short run
    if process:
        return process
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        _in_virtual_time(partial(_fuzz_in_child, engine, target, directories, seconds, seed))
    finally:
        os._exit(1)


def _run_of(target: str, output: str, status: int) -> Run:
    progress = _PROGRESS.findall(output)
    executions = _EXECUTIONS.findall(output)
    coverage, corpus = map(int, progress[-1]) if progress else (0, 0)
    saved = _SAVED.search(output)
    finding = Path(saved[1]) if saved else None
    return Run(target, int(executions[-1]) if executions else 0, coverage, corpus, finding, output, status)


def _line_of(run: Run) -> str:
    found = "1 finding" if run.failed else "0 findings"
    return f"{run.target:<16} {run.executions:>10} executions  coverage {run.coverage:>5}  corpus {run.corpus:>5}  {found}"


def fuzz(targets: Sequence[Target], engine: Engine, work: Path, seconds: float, seed: int, corpus: Path) -> list[Run]:
    """Fuzz targets in as many concurrent processes as there are processors; print a line as each one ends."""
    from .seeds import seeds  # noqa: PLC0415 - an earlier import would prevent instrumentation

    FINDINGS.mkdir(exist_ok=True)
    at_once = os.cpu_count() or 1
    share = max(round(seconds * at_once / len(targets)), SECONDS_MIN)
    beginnings = seeds()
    waiting, running = list(reversed(targets)), dict[int, Target]()
    runs: list[Run] = []
    while waiting or running:
        while waiting and len(running) < at_once:
            target = waiting.pop()
            found, right = work / target.name / "found", work / target.name / "right"
            for directory in (found, right):
                directory.mkdir(parents=True)
            for number, content in enumerate(beginnings[target.name]):
                (right / str(number)).write_bytes(content)
            kept = corpus / target.name
            directories = [found, right, *([kept] if kept.is_dir() else [])]
            running[_start(engine, target, directories, work / f"{target.name}.out", share, seed)] = target
        process, status = os.wait()
        target = running.pop(process)
        run = _run_of(target.name, (work / f"{target.name}.out").read_text(errors="replace"), status)
        runs.append(run)
        print(_line_of(run), flush=True)  # noqa: T201
    return runs


def _in_virtual_time(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    trio.run(task, clock=trio.testing.MockClock(autojump_threshold=0))


async def replay(target: Target, data: bytes) -> None:
    """Judge one input; raises the exception of the finding, if it is one."""
    with judging():
        async with target.opens() as decode:
            taken = judge(target, decode, data)
    print(f"{target.name}: {'read' if taken else 'refused as documented'}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together, about (60)")
    parser.add_argument("--targets", help="names, joined by commas; all by default")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help=f"where the kept inputs lie ({CORPUS})")
    parser.add_argument("--keep", action="store_true", help="renew the corpus by what was found")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="judge one input, without the fuzzer")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    chosen = _parser().parse_args(arguments)
    if chosen.replay:
        from .targets import BY_NAME  # noqa: PLC0415 - the other branch imports it instrumented

        _in_virtual_time(partial(replay, BY_NAME[chosen.replay[0]], Path(chosen.replay[1]).read_bytes()))
        return 0
    engine = cast("Engine", importlib.import_module("atheris"))
    with (
        redirect_stderr(io.StringIO()),
        engine.instrument_imports(include=["ledgermq", "harness"]),
    ):  # atheris prints the name of every module
        from .targets import BY_NAME, TARGETS  # noqa: PLC0415 - imported here, it is instrumented
    targets = [BY_NAME[name] for name in chosen.targets.split(",")] if chosen.targets else list(TARGETS)
    # libFuzzer reads seed 0 as no seed.
    seed = random.SystemRandom().randrange(1, 1 << 31) if chosen.seed is None else int(chosen.seed)
    print(f"seed {seed}", flush=True)  # noqa: T201
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-") as name:
        work = Path(name)
        runs = fuzz(targets, engine, work, float(chosen.seconds), seed, chosen.corpus)
        if chosen.keep:
            for target in targets:
                found = read_inputs(work / target.name / "found", work / target.name / "right")
                _in_virtual_time(partial(keep, target, found, chosen.corpus))
    bad = [run for run in runs if run.failed]
    for run in bad:
        print(f"\n{run.target}:\n{_why(run.output)}")  # noqa: T201
        if run.finding is not None:
            print(f"replay: python -m harness.fuzz --replay {run.target} {run.finding}")  # noqa: T201
    executions = sum(run.executions for run in runs)
    seconds = time.monotonic() - began
    print(f"{len(runs)} targets, {executions} executions, {len(bad)} findings, {seconds:.0f} s")  # noqa: T201
    return 1 if bad else 0


def _why(output: str) -> str:
    """The part of a child's output that describes the failure."""
    lines = output.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(("Traceback", "=="))]
    return "\n".join(lines[starts[0] :][:40] if starts else lines[-40:])


if __name__ == "__main__":
    sys.exit(main())
