"""Child processes of a benchmark, and their use of CPU and memory, read from /proc (Linux).

CPU seconds are `utime + stime` of a process and all its live descendants, so work that a server passes to child processes
counts too. `stop` waits for the end of the process, so its ports are free afterwards.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFailedError(Exception):
    """A child ended before it was ready, or was not ready in time; the message contains the tail of its output."""

    def __init__(self, name: str, reason: str, log: Path) -> None:
        self.name = name
        self.log = log
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        super().__init__(f"{name} {reason}; {log} ends with:\n{tail}")


@attrs.frozen
class Resident:
    """Memory of a process: all resident pages, and the anonymous ones, which exclude pages of mapped files."""

    total_bytes: int
    anonymous_bytes: int


@attrs.define
class Process:
    """One running child process, whose standard output and error go to `log`."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    started_at: float

    @classmethod
    def start(cls, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> "Process":
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            started_at = time.perf_counter()
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )
        return cls(name, popen, log, started_at)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_output(self, pattern: str, timeout: float) -> float:
        """Wait until the output matches `pattern`; return the seconds since the start."""
        deadline = time.perf_counter() + timeout
        expression = re.compile(pattern)
        while not expression.search(self.output()):
            if self.popen.poll() is not None:
                raise ProcessFailedError(self.name, f"ended with status {self.popen.returncode}", self.log)
            if time.perf_counter() > deadline:
                raise ProcessFailedError(self.name, f"did not print {pattern!r} within {timeout:.0f} s", self.log)
            time.sleep(0.01)
        return time.perf_counter() - self.started_at

    def cpu_seconds(self) -> float:
        return sum(_cpu_ticks(pid) for pid in _family(self.popen.pid)) / _TICKS_PER_SECOND

    def resident(self) -> Resident:
        total = anonymous = 0
        for pid in _family(self.popen.pid):
            resident, shared = (int(field) for field in Path(f"/proc/{pid}/statm").read_text().split()[1:3])
            total += resident * _PAGE_BYTES
            anonymous += (resident - shared) * _PAGE_BYTES
        return Resident(total, anonymous)

    def stop(self, timeout: float = 60) -> float:
        """Send SIGTERM to the process, wait for its end, and return the seconds that this took."""
        asked_at = time.perf_counter()
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
        return time.perf_counter() - asked_at

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants."""
        for pid in _family(self.popen.pid):
            os.kill(pid, number)

    def kill(self) -> None:
        """Kill the process and its descendants with SIGKILL, unless it has ended."""
        if self.popen.poll() is not None:
            return
        for pid in reversed(_family(self.popen.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.popen.wait()


def end_in_order() -> None:
    """Make SIGTERM raise SystemExit in this process, so that the servers it started are stopped."""

    def leave(number: int, _: object) -> None:
        # `timeout` and a parent may both send SIGTERM; the second one must not interrupt the clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def machine_cpu_seconds() -> float:
    """Return the CPU seconds that all processes of the machine have used since boot."""
    user, nice, system, _, _, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process, its live descendants, and the children it has waited for."""
    times = os.times()
    living = sum(_cpu_ticks(pid) for pid in _family(os.getpid())) / _TICKS_PER_SECOND
    return living + times.children_user + times.children_system


def _cpu_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0
    # The command name in parentheses may contain spaces; utime and stime are fields 14 and 15, counted from the pid.
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _family(pid: int) -> list[int]:
    family = [pid]
    for member in family:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            try:
                family.extend(int(child) for child in children.read_text().split())
            except FileNotFoundError:
                continue
    return family
