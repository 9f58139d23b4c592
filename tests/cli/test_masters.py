"""Commands on a cluster of which a broker has lost its master: they read from the slave, and name what they left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from click.testing import Result

from ledgermq import ConsumeFrom, Message, blocking
from ledgermq.testing.embedded import StartedEmbedded, start_embedded

from .conftest import Start

LEFT_OUT = "Left out, because they have no master now: broker-a"


@pytest.fixture
def headless(start: Start, tmp_path: Path) -> Generator[StartedEmbedded]:
    """A pair with three messages, of which a group has consumed one, and whose master has been stopped, beside a master."""
    with start_embedded(mode="ha", nodes=2) as embedded:
        own = {"brokerName": "broker-b", "brokerIP1": "127.0.0.1", "listenPort": "0", "namesrvAddr": embedded.namesrv}
        own["storePathRootDir"] = str(tmp_path / "store")
        start("broker", *(text for key, value in own.items() for text in (f"--{key}", value))).wait_for("boot success")
        with blocking.open_admin(embedded.namesrv) as admin:
            admin.call(lambda each: each.create_topic("t", queues=1))
        with blocking.open_producer(embedded.namesrv, send_timeout_seconds=60) as producer:
            (queue,) = (each for each in producer.queues("t") if each.broker_name == "broker-a")
            for number in range(3):
                assert producer.send(Message("t", b"%d" % number), queue=queue).status.name == "SEND_OK"
        with blocking.open_consumer(embedded.namesrv, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST) as consumer:
            message = consumer.get_one()
            assert message is not None
            message.ack()
        embedded.stop(embedded.master())
        yield embedded


def test_what_has_no_master_is_read_from_its_slave_and_named(headless: StartedEmbedded, runner: Callable[..., Result]) -> None:
    def run(*arguments: str, status: int = 0) -> Result:
        return runner(*arguments, status=status, namesrv=headless.namesrv)

    found = json.loads(run("message", "find", "t", "--since", "1h", "--json").stdout)
    assert [message["queue_offset"] for message in found] == [0, 1, 2]

    for command in (("topic", "show", "t"), ("group", "show", "g")):
        assert LEFT_OUT in run(*command).stderr
        assert json.loads(run(*command, "--json").stdout)["without_master"] == ["broker-a"]

    for listing in (("group", "list"), ("user", "list"), ("acl", "list"), ("acl", "show", "alice")):
        assert LEFT_OUT in run(*listing).stderr
        assert LEFT_OUT in run(*listing, "--json").stderr
    assert LEFT_OUT in run("user", "show", "alice", status=1).stderr
    assert LEFT_OUT not in run("user", "list", "--broker", "broker-b").stderr

    for change in (("group", "reset", "g", "t", "--to", "earliest"), ("group", "clone", "g", "h", "t")):
        refused = run(*change, status=1)
        assert "broker-a" in refused.stderr
        assert "nothing was changed" in refused.stderr


CHANGES = (
    ("topic", "create", "u"),
    ("topic", "update", "t", "--perm", "r"),
    ("topic", "delete", "t", "--yes"),
    ("group", "create", "h"),
    ("group", "update", "g", "--retries", "3"),
    ("group", "delete", "g", "--yes"),
)


def test_no_change_leaves_out_the_broker_that_has_no_master(headless: StartedEmbedded, runner: Callable[..., Result]) -> None:
    """It would come back without the change: a topic that the command has said to be deleted would be there again."""
    for command in CHANGES:
        refused = runner(*command, status=1, namesrv=headless.namesrv)
        assert "broker-a cannot be reached: no master, which has to make the change; nothing was changed" in refused.stderr

    assert json.loads(runner("topic", "list", "--json", namesrv=headless.namesrv).stdout) == ["t"]
    assert "g" in json.loads(runner("topic", "show", "t", "--json", namesrv=headless.namesrv).stdout)["groups"]
    runner("topic", "create", "u", "--broker", "broker-b", namesrv=headless.namesrv)
