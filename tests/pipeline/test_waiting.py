"""Waiting for servers that do not answer, on a clock that moves by hand: what is reported, when, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import pytest

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.batches import Batches
from ledgermq.pipeline.broker_client import BrokerClient
from ledgermq.pipeline.broker_reader import BrokerReader
from ledgermq.pipeline.errors import WARNING, PipelineError, Unavailable, warn
from ledgermq.pipeline.link import Link
from ledgermq.pipeline.options import Content, Pulling, Servers, write_options
from ledgermq.pipeline.outgoing import Outgoing
from ledgermq.pipeline.ranges import QueueRange
from ledgermq.pipeline.segment_reader import Reader
from ledgermq.pipeline.sender import Began, Sender
from ledgermq.pipeline.waiting import PAUSE_SECONDS, REPORT_SECONDS, Wait
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.world.address import Address

from .test_link_answers import HandClock, ScriptedSocket, ScriptedSockets

QUEUE = MessageQueue("T", "a", 0)
SERVERS = Servers((Address("one", 1), Address("two", 2)), failover_seconds=30.0)


@attrs.define(eq=False)
class HandTime(HandClock):
    """Stands for the module `time`; sleeping moves the clock."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    found = HandTime()
    monkeypatch.setattr("ledgermq.pipeline.waiting.time", found)
    return found


def test_a_wait_is_reported_once_and_ends(clock: HandTime, capsys: pytest.CaptureFixture[str]) -> None:
    """A short one is part of every failover, and is not worth a line."""
    wait = Wait(5.0)

    attempts = 1
    while clock.now < REPORT_SECONDS:
        assert capsys.readouterr().err == ""
        assert wait.goes_on("no bus has come yet")
        attempts += 1
    while wait.goes_on("no bus has come yet"):
        attempts += 1

    assert attempts == pytest.approx(5.0 / PAUSE_SECONDS + 1, abs=1)
    assert (
        capsys.readouterr().err == f"{WARNING}no bus has come yet; trying again until 5 s have passed ('failoverTimeoutMs')\n"
    )


def knows_no_broker(end: ScriptedSocket, request: RemotingCommand) -> None:
    """Answer as a name server at which no broker has registered."""
    is_list = request.code == RequestCode.GET_BROKER_CLUSTER_INFO
    code = ResponseCode.SUCCESS if is_list else ResponseCode.TOPIC_NOT_EXIST
    end.incoming.append(encode_frame(request.response(code, body=b"{}")))


def ask_for_topics() -> None:
    BrokerClient(SERVERS).topics()


def read() -> None:
    reader = Reader(Batches(()), Content(), fail_on_data_loss=True, warn=warn)
    list(BrokerReader(BrokerClient(SERVERS), Pulling(), reader).read([QueueRange(QUEUE, 0, 1)]))


def write() -> None:
    sender = Sender(write_options({"nameServer": "one:1;two:2", "topic": "T"}), Began({}, 0), None)
    sender.add([Outgoing("T", None, None, None, b"body", 0, "", 0, None, b"")])


@pytest.mark.parametrize("work", [ask_for_topics, read, write])
def test_name_servers_that_do_not_answer_are_reported_and_then_named(
    clock: HandTime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], work: Callable[[], None]
) -> None:
    """Their addresses with what happened, the time, the option that sets it, and how often they were asked."""
    monkeypatch.setattr(BrokerClient, "link", lambda _, address: Link(address, ScriptedSockets(knows_no_broker, refuses=True)))

    with pytest.raises(Unavailable) as ended:
        work()

    reported = capsys.readouterr().err
    where = "one:1: Connection refused; two:2: Connection refused"
    assert reported.count("\n") == 1
    assert f"option 'nameServer': no name server has answered yet ({where}); trying again until 30 s" in reported
    assert re.search(r"within 30 s \('failoverTimeoutMs'\), in \d{3} attempts \(", str(ended.value))
    assert where in str(ended.value)


@pytest.mark.parametrize("work", [read, write])
def test_name_servers_without_brokers_are_reported_and_then_named(
    clock: HandTime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], work: Callable[[], None]
) -> None:
    """Brokers that are starting register soon; a wrong name server never knows one."""
    link = Link(SERVERS.namesrv[0], ScriptedSockets(knows_no_broker))
    monkeypatch.setattr(BrokerClient, "link", lambda _self, _address: link)

    with pytest.raises(PipelineError, match=r"within 30 s|for 30 s"):
        work()

    assert len(capsys.readouterr().err.splitlines()) == 1
