"""Writing to brokers that do not know the request that begins an epoch, as Apache's: what is unsure is looked for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ledgermq.pipeline.link import Link, LinkLost
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered
from .test_sender import messages, options_of


@pytest.fixture
def topic(broker: Embedded, request: pytest.FixtureRequest) -> str:
    name = "apache-" + "".join(each if each.isalnum() else "-" for each in request.node.name)
    create_topic(broker.namesrv, name, 3)
    return name


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What becomes of the next batches that are sent: "lost request", "lost answer" or "busy", after it was stored."""
    submit, answer = Link.submit, Link.answer
    planned: list[str] = []
    unsure: dict[int, str] = {}

    def as_apache(self: Link, command: RemotingCommand, timeout_seconds: float) -> int:
        if command.code == RequestCode.FENCE_PRODUCER:
            command = RemotingCommand(RequestCode.QUERY_ASSIGNMENT)
        assert "sendNumber" not in command.ext
        fate = planned.pop(0) if command.code == RequestCode.SEND_BATCH_MESSAGE and planned else "ok"
        if fate == "lost request":
            self.close()
            raise LinkLost(self.address, "test")
        opaque = submit(self, command, timeout_seconds)
        unsure[opaque] = fate
        return opaque

    def unsure_answer(self: Link, opaque: int, timeout_seconds: float) -> RemotingCommand:
        found = answer(self, opaque, timeout_seconds)
        fate = unsure.pop(opaque, "ok")
        if fate == "lost answer":
            self.close()
            raise LinkLost(self.address, "test")
        return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="[PC_SYNCHRONIZED]broker busy") if fate == "busy" else found

    monkeypatch.setattr(Link, "submit", as_apache)
    monkeypatch.setattr(Link, "answer", unsure_answer)
    monkeypatch.setattr("ledgermq.pipeline.sender.SETTLE_SECONDS", 0.0)
    return planned


def write(broker: Embedded, topic: str, batches: Iterable[int]) -> None:
    """Send batches of rows with these numbers of messages, each from 0 on, in one queue."""
    options = options_of(broker, topic, sendBatchBytes="100000")
    sender = Sender(options, begin(options), "apache.0.0")
    for count in batches:
        sender.add(messages(topic, count, queueId=0))
        sender.flush()
    assert sender.sent == sum(batches)


@pytest.mark.parametrize("fate", ["lost answer", "busy"])
def test_messages_that_may_be_stored_are_looked_for_before_they_are_sent_again(
    broker: Embedded, topic: str, fates: list[str], fate: str
) -> None:
    """With DLedger a broker is busy if the other nodes did not confirm an entry in time, which is then stored."""
    fates.append(fate)
    write(broker, topic, [30])

    assert all_bodies(broker.namesrv, topic) == numbered(range(30))


def test_messages_that_were_found_once_are_not_found_for_equal_ones(broker: Embedded, topic: str, fates: list[str]) -> None:
    """The answer to the first batch is lost, and then the request of the second one, whose rows say the same."""
    fates += ["lost answer", "lost request"]
    write(broker, topic, [30, 30])

    assert all_bodies(broker.namesrv, topic) == numbered([*range(30), *range(30)])
