"""Cores of the java dialect in a given state, which answer one message after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import attrs

from ledgermq.ha.dledger.java.core import JavaCore
from ledgermq.ha.dledger.java.messages import Message, Reply
from ledgermq.ha.dledger.java.state import JavaSettings
from ledgermq.ha.dledger.ledger.layout import ENTRY, HEADER_SIZE
from ledgermq.ha.raft.batch import TermRun
from ledgermq.ha.raft.log import LogState, RaftLog
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import PeerId
from ledgermq.message.checksum import crc32

from .ledgers import message

OWN, OTHER, THIRD = PeerId("n0"), PeerId("n1"), PeerId("n2")
SIZE = HEADER_SIZE + len(message(0))
"""The size of each entry, all of which are equally large."""


def entry(index: int, term: int, body: int = 0) -> memoryview:
    """The entry of an index; another `body` makes it differ."""
    record = message(body)
    head = ENTRY.pack(
        magic=1,
        size=SIZE,
        index=index,
        term=term,
        position=index * SIZE,
        channel=0,
        chain_crc=0,
        body_crc=crc32(record),
        body_size=len(record),
    )
    return memoryview(head + record)


@attrs.define
class Entries:
    """The written entries of a node, with the term of each."""

    terms: list[int]
    begin: int = 0

    def entry(self, index: int) -> memoryview:
        return entry(index, self.terms[index])

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[memoryview]:
        count = max(bytes_max // SIZE, 1)
        return [self.entry(index) for index in range(first, min(last, first + count - 1) + 1)]

    def fits(self, position: int, size: int, end: int | None = None) -> bool:
        return (position % SIZE, size) == (0, SIZE) and end in (None, position)


def node(
    terms: Sequence[int] = (),
    *,
    term: int = 1,
    vote: PeerId | None = None,
    leader: PeerId | None = None,
    committed: int = -1,
    begin: int = 0,
    voters: Sequence[str] = ("n0", "n1", "n2"),
) -> JavaCore:
    """A node whose log has entries of these terms, all durable.

    Args:
        leader: whom it follows; a candidate if None.
        begin: the first entry that it still has.
    """
    runs = tuple(TermRun(next(group)[0], number) for number, group in groupby(enumerate(terms), lambda pair: pair[1]))
    kept = tuple(attrs.evolve(run, first_index=max(run.first_index, begin)) for run in runs)
    before = terms[begin - 1] if begin else -1
    log = RaftLog.of(LogState(begin - 1, before, len(terms) - 1, kept))
    configuration = Configuration(tuple(map(PeerId, voters)))
    core = JavaCore(
        OWN,
        configuration,
        JavaSettings(),
        Entries(list(terms), begin),
        lambda low, high: low,
        log,
        term,
        vote,
        committed,
        committed,
    )
    if leader is not None:
        core.role, core.leader = Role.FOLLOWER, leader
    return core


def sent(core: JavaCore) -> list[Message]:
    """What the node has sent since the last call."""
    messages = list(core.messages)
    core.messages.clear()
    return messages


def answer(core: JavaCore, request: Message) -> Reply:
    """The only answer of the node to a request."""
    core.step(request)
    (reply,) = sent(core)
    assert isinstance(reply, Reply)
    return reply
