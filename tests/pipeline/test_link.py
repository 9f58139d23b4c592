"""Links of plain threads: who shares one, and what becomes of requests whose answer does not come."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from ledgermq.pipeline.broker_client import request
from ledgermq.pipeline.link import Link, LinkLost, close_links, link_to
from ledgermq.pipeline.options import Servers, read_options
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import Embedded
from ledgermq.world.address import Address

THREADS, REQUESTS = 4, 50


@pytest.fixture
def namesrv(broker: Embedded) -> Generator[tuple[Address, Servers]]:
    """The name server of the shared broker, and the options that name it."""
    place = read_options({"nameServer": broker.namesrv, "subscribe": "T"}, streaming=False).place
    assert isinstance(place, Servers)
    yield Address.parse(broker.namesrv), place
    close_links()


def list_topics() -> RemotingCommand:
    return request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})


def test_threads_that_ask_one_server_at_once_each_get_their_answers(namesrv: tuple[Address, Servers]) -> None:
    """A link matches answers without locks, so each thread has its own, and keeps it."""
    address, servers = namesrv
    together = Barrier(THREADS)

    def ask(_: int) -> Link:
        together.wait(10)
        link = link_to(address, servers)
        for _ in range(REQUESTS):
            assert b"topicList" in link.call(list_topics(), 10.0).body
            assert link_to(address, servers) is link
        return link

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(ask, range(THREADS)))

    assert len({id(link) for link in found}) == THREADS


def test_a_closed_link_opens_again_for_the_next_request(namesrv: tuple[Address, Servers]) -> None:
    link = link_to(*namesrv)
    link.call(list_topics(), 10.0)
    link.close()

    assert b"topicList" in link.call(list_topics(), 10.0).body


def test_pending_requests_fail_when_their_link_is_closed(namesrv: tuple[Address, Servers]) -> None:
    """The error names the server; whether it carried them out is not known."""
    link = link_to(*namesrv)
    opaque = link.submit(list_topics(), 10.0)
    link.close()

    with pytest.raises(LinkLost, match=str(namesrv[0])):
        link.answer(opaque, 1.0)
