"""The README's Java guide compiles as it stands, prints what it says, and ends."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from ledgermq.testing.embedded import Embedded

from . import peers, servers
from .conftest import CLIENTS, obtain

PATIENT_START = "producer.setSendMsgTimeout(60_000); producer.setMqClientApiTimeout(60_000); producer.start();"
"""On an overloaded machine a Java process that has just started needs longer than its default time limits."""
README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_java_guide_compiles_prints_and_ends(ledgermq_broker: Embedded, tmp_path: Path) -> None:
    """With the client that the README names; a client that is not shut down would keep the program running."""
    found = re.search(
        r"^```java\n(.*?)^```$\n\nBeside what the client logs, it prints:\n\n```text\n(.*?)^```$",
        README,
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None
    program, expected = found[1].replace("127.0.0.1:9876", ledgermq_broker.namesrv), found[2]
    program = program.replace("producer.start();", PATIENT_START)
    assert "rocketmq-client:4.9.8" in README
    jars = obtain(lambda: peers.apache_jars(CLIENTS["4.9.8"]))
    (tmp_path / "SendPayment.java").write_text(program)

    subprocess.run(
        [peers.tool("javac"), "-Xlint:-options", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", ".", "SendPayment.java"],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    done = subprocess.run(
        [*servers.java_command(f"{tmp_path}:{jars}/*", tmp_path / "home", "-Xmx256m"), "SendPayment"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=servers.java_environment(tmp_path / "home"),
    )

    printed = [line for line in done.stdout.splitlines() if not re.match(r"\d\d:\d\d:\d\d\.\d{3} \[", line)]
    assert (done.returncode, printed) == (0, expected.splitlines()), done.stderr
