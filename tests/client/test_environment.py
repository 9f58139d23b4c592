"""What clients read from environment variables where an argument is not given."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq import open_admin, open_consumer, open_producer, open_pull_consumer
from ledgermq.client.environment import VARIABLES, Variable
from ledgermq.client.errors import InvalidArgument
from ledgermq.client.subscription import ReadFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import open_virtual
from ledgermq.world.tls import ClientTls

from .fake_cluster import NAMESRV, open_cluster

OPENS = {each.__name__: each for each in (open_producer, open_consumer, open_pull_consumer, open_admin)}


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda each: each.name)
def test_every_variable_stands_for_an_argument_of_its_clients(variable: Variable[Any]) -> None:
    """Which is None by default, so that a value that the program gives has priority."""
    for name, opened in OPENS.items():
        parameters = inspect.signature(opened).parameters
        assert (name in variable.clients) == (variable.argument in parameters), name
        if name in variable.clients:
            assert parameters[variable.argument].default is None
    assert variable.unit
    assert variable.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("LEDGERMQ_SEND_TIMEOUT_SECONDS", "2.5", 2.5),
        ("LEDGERMQ_RETRIES", " 0 ", 0),
        ("LEDGERMQ_RETRIES", "", 2),
        ("LEDGERMQ_READ_FROM", "slave", ReadFrom.SLAVE),
        ("LEDGERMQ_NAMESRV", "a;b:1", "a;b:1"),
    ],
)
def test_a_variable_counts_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    (variable,) = (each for each in VARIABLES if each.name == name)
    monkeypatch.setenv(name, text)

    assert variable.value(None) == value
    assert variable.value(7) == 7


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("LEDGERMQ_SEND_TIMEOUT_SECONDS", "3s", "must be a number of seconds above 0 .got '3s'"),
        ("LEDGERMQ_SEND_TIMEOUT_SECONDS", "0", "must be a number of seconds above 0 .got 0"),
        ("LEDGERMQ_RETRIES", "-1", "must be a whole number from 0 to 2147483647 .got -1"),
        ("LEDGERMQ_BYTES_MAX", "64M", "must be a whole number of at least 1 .got '64M'"),
        ("LEDGERMQ_READ_FROM", "MASTER,SLAVE", "must be one of suggested, master, slave"),
        ("LEDGERMQ_TLS_CONFIG", "/no/such/file", "/no/such/file: .*No such file"),
        ("LEDGERMQ_NAMESRV", "a:b", "name server"),
    ],
)
async def test_a_bad_value_names_its_variable(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    """In whichever client needs it, before any server is asked."""
    (variable,) = (each for each in VARIABLES if each.name == name)
    monkeypatch.setenv("LEDGERMQ_NAMESRV", NAMESRV)
    monkeypatch.setenv(name, text)
    async with open_cluster() as cluster:
        for client in variable.clients:
            arguments: dict[str, Any] = {"world": cluster.world}
            arguments |= {"group": "g"} if "consumer" in client else {}
            arguments |= {"topics": "t"} if client == "open_consumer" else {}
            with pytest.raises(InvalidArgument, match=f"{name}.*{words}"):
                async with OPENS[client](**arguments):
                    pass
        assert not cluster.requests


async def test_a_client_needs_no_argument_that_the_environment_has(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without both, the error says what to do."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        monkeypatch.delenv("LEDGERMQ_NAMESRV", raising=False)
        with pytest.raises(InvalidArgument, match=r"give namesrv=HOST:PORT, or set .LEDGERMQ_NAMESRV"):
            async with open_producer(world=cluster.world):
                pass
        monkeypatch.setenv("LEDGERMQ_NAMESRV", NAMESRV)
        monkeypatch.setenv("LEDGERMQ_RETRIES", "5")
        monkeypatch.setenv("LEDGERMQ_INSTANCE_NAME", "first")
        async with (
            open_producer(world=cluster.world) as producer,
            open_consumer(group="g", topics="t", world=cluster.world) as consumer,
        ):
            await producer.send(Message("t", b"0"))
            assert producer.options.retries == 5
            assert "@first" in consumer.client_id
        with pytest.raises(InvalidArgument, match="group ''"):
            async with open_consumer(topics="t", world=cluster.world):
                pass


async def test_clients_of_one_process_do_not_share_the_instance_name_of_the_environment(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one client id both members of a group would take all its queues."""
    monkeypatch.setenv("LEDGERMQ_INSTANCE_NAME", "first")
    async with open_virtual() as cluster:
        async with open_producer(cluster.namesrv, world=cluster.world) as producer:
            await producer.send(Message("t", b"0"))
        async with (
            open_consumer(cluster.namesrv, "g", "t", world=cluster.world) as one,
            open_consumer(cluster.namesrv, "g", "t", world=cluster.world) as two,
        ):
            assert re.search(r"@first(-\d+)?$", one.client_id)
            assert re.search(r"@first-\d+$", two.client_id)
            await trio.sleep(30)
            assert set(one.queues) & set(two.queues) == set()


def test_a_file_of_rocketmqs_keys_turns_tls_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (variable,) = (each for each in VARIABLES if each.name == "LEDGERMQ_TLS_CONFIG")
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.trustCertPath=ca.pem\n", encoding="utf-8")
    monkeypatch.setenv(variable.name, str(file))

    assert variable.value(None) == ClientTls(trust_cert_path="ca.pem")
    file.write_text("tls.client.authServer=perhaps\n", encoding="utf-8")
    with pytest.raises(InvalidArgument, match=r"LEDGERMQ_TLS_CONFIG=.*tls.client.authServer"):
        variable.value(None)
