"""The replicas in sync with an elected master: what they confirm, and how the set changes."""

from __future__ import annotations

from functools import partial

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ledgermq.ha.classic.in_sync import NEAR_BYTES, InSyncAcknowledgements, Proposal
from ledgermq.store.statuses import PutStatus

MASTER, B, C = 1, 2, 3


@attrs.define(eq=False)
class Log:
    """The log of a master, as far as the acknowledgements see it."""

    end: int = 1000
    limit: int | None = 0
    answers: list[PutStatus] = attrs.field(factory=list[PutStatus])

    def books(
        self,
        *members: int,
        confirmed: int | None = None,
        all_acknowledge: bool = True,
        replicas: int = 1,
        members_min: int = 1,
    ) -> InSyncAcknowledgements:
        return InSyncAcknowledgements(
            own_id=MASTER,
            members=frozenset(members),
            set_epoch=5,
            log_end=lambda: self.end,
            confirmed=self.end if confirmed is None else confirmed,
            limit_readable=self.limited,
            all_acknowledge=all_acknowledge,
            replicas=replicas,
            members_min=members_min,
        )

    def limited(self, limit: int | None) -> None:
        self.limit = limit

    def put(self, acks: InSyncAcknowledgements, size: int = 100) -> None:
        self.end += size
        acks.wait(self.end, 3.0, self.answers.append)


def test_a_master_alone_in_the_set_answers_at_once_and_hides_nothing() -> None:
    log = Log()
    acks = log.books(MASTER)

    log.put(acks)

    assert log.answers == [PutStatus.PUT_OK]
    assert log.limit is None


def test_an_elected_master_shows_no_more_than_its_predecessor_until_the_set_has_its_log() -> None:
    """Else what a consumer has seen could be lost with it."""
    log = Log(end=1000)
    acks = log.books(MASTER, B, confirmed=900)
    assert log.limit == 900
    assert not acks.settled

    acks.hold(B, 1000)
    assert log.limit == 1000
    assert acks.settled


def test_a_put_that_was_stored_before_the_set_became_too_small_is_acknowledged_when_it_has_grown_again() -> None:
    log = Log()
    acks = log.books(MASTER, B, members_min=2)
    log.put(acks)

    acks.confirm(frozenset({MASTER}), 6)
    log.put(acks)
    assert log.answers == []

    acks.hold(B, 1200)
    assert log.answers == []

    acks.confirm(frozenset({MASTER, B}), 7)
    assert log.answers == [PutStatus.PUT_OK, PutStatus.PUT_OK]


def test_a_put_that_was_stored_before_the_set_became_too_small_times_out_otherwise() -> None:
    log = Log()
    acks = log.books(MASTER, B, members_min=2)
    log.put(acks)

    acks.confirm(frozenset({MASTER}), 6)
    acks.expire(3.0)

    assert log.answers == [PutStatus.FLUSH_SLAVE_TIMEOUT]


def test_a_put_waits_for_every_member_and_shows_nothing_before() -> None:
    log = Log()
    acks = log.books(MASTER, B, C)
    acks.hold(B, 1000)
    acks.hold(C, 1000)

    log.put(acks)
    acks.hold(B, 1100)
    assert log.answers == []
    assert log.limit == 1000

    acks.hold(C, 1100)
    assert log.answers == [PutStatus.PUT_OK]
    assert log.limit == 1100


def test_a_replica_outside_the_set_answers_nothing() -> None:
    log = Log(end=10 * NEAR_BYTES)
    acks = log.books(MASTER, B)
    acks.hold(B, log.end)

    log.put(acks, 2 * NEAR_BYTES)
    acks.hold(C, NEAR_BYTES)

    assert log.answers == []
    assert acks.required == {B}


def test_a_replica_is_waited_for_before_the_controller_is_asked_to_take_it_in() -> None:
    """Else the controller could elect it, and it would lack what the master answered meanwhile."""
    log = Log()
    acks = log.books(MASTER)
    acks.hold(B, 900)

    assert acks.required == {B}
    assert log.limit == 1000
    assert acks.proposal(0.0) is None

    log.put(acks)
    assert log.answers == []
    acks.hold(B, 1000)
    assert acks.proposal(0.0) == Proposal(frozenset({MASTER, B}), 5)
    acks.hold(B, 1100)
    assert log.answers == [PutStatus.PUT_OK]


def with_a_proposed_replica_that_has_gone() -> tuple[Log, InSyncAcknowledgements]:
    """A master alone that has proposed a second replica, which is not connected any more; a put waits."""
    log = Log()
    acks = log.books(MASTER)
    acks.hold(B, 1000)
    assert acks.proposal(0.0) is not None
    acks.leave(B)
    log.put(acks)
    return log, acks


def test_a_proposed_replica_is_waited_for_even_after_it_has_gone() -> None:
    """The controller may have taken it in, and its answer may be lost."""
    log, acks = with_a_proposed_replica_that_has_gone()
    assert log.answers == []

    acks.confirm(frozenset({MASTER}), 6)
    assert log.answers == [PutStatus.PUT_OK]


def test_a_proposed_replica_that_has_gone_is_ruled_out_by_the_confirmed_set_under_its_next_epoch() -> None:
    """Its proposal was refused or lost. Otherwise no put would be acknowledged until it is back."""
    log, acks = with_a_proposed_replica_that_has_gone()

    assert acks.proposal(0.0) == Proposal(frozenset({MASTER}), 5)
    assert log.answers == []
    acks.confirm(frozenset({MASTER}), 6)

    assert log.answers == [PutStatus.PUT_OK]
    assert acks.proposal(0.0) is None


def test_a_proposed_replica_that_is_connected_again_is_not_ruled_out() -> None:
    _, acks = with_a_proposed_replica_that_has_gone()

    acks.hold(B, 900)

    assert acks.proposal(0.0) is None


def test_members_that_hold_most_are_the_first_successors() -> None:
    acks = Log().books(MASTER, B, C, 4)
    acks.hold(B, 900)
    acks.hold(4, 1000)

    assert acks.successors == [4, B, C]


def test_a_member_that_has_gone_is_waited_for_until_the_controller_agrees() -> None:
    log = Log()
    acks = log.books(MASTER, B)
    acks.hold(B, 1000)
    acks.leave(B)

    log.put(acks)
    assert acks.proposal(0.0) is None  # it may come back
    assert acks.proposal(1.0) == Proposal(frozenset({MASTER}), 5)
    assert log.answers == []

    acks.confirm(frozenset({MASTER}), 6)
    assert log.answers == [PutStatus.PUT_OK]


def test_a_member_that_falls_behind_for_too_long_is_to_leave() -> None:
    log = Log()
    acks = log.books(MASTER, B)
    acks.hold(B, 1000)
    assert acks.proposal(0.0) is None

    log.put(acks)
    assert acks.proposal(1.0) is None
    assert acks.proposal(3.0) is None  # only now is it seen that it lacks something
    assert acks.proposal(6.0) == Proposal(frozenset({MASTER}), 5)


def test_a_set_that_is_older_than_the_known_one_is_ignored() -> None:
    log = Log()
    acks = log.books(MASTER, B)

    acks.confirm(frozenset({MASTER}), 4)

    assert acks.members == {MASTER, B}


def test_fewer_copies_may_answer_if_the_operator_says_so_and_still_show_nothing() -> None:
    """With allAckInSyncStateSet=false, as in RocketMQ."""
    log = Log()
    acks = log.books(MASTER, B, C, all_acknowledge=False, replicas=2)
    acks.hold(B, 1000)
    acks.hold(C, 1000)

    log.put(acks)
    acks.hold(C, 1100)

    assert log.answers == [PutStatus.PUT_OK]
    assert log.limit == 1000


def test_only_copies_in_the_confirmed_set_are_counted() -> None:
    """If the master failed, B would be elected, which lacks what C has."""
    log = Log()
    acks = log.books(MASTER, B, all_acknowledge=False, replicas=2)
    acks.hold(B, 1000)
    acks.hold(C, 1000)

    log.put(acks)
    acks.hold(C, 1100)
    assert log.answers == []

    acks.hold(B, 1100)
    assert log.answers == [PutStatus.PUT_OK]


def test_the_copy_of_a_member_that_may_have_been_left_out_is_not_counted() -> None:
    """Until the controller has answered, and whoever keeps up again is proposed anew."""
    log = Log()
    acks = log.books(MASTER, B, C, all_acknowledge=False, replicas=2)
    acks.hold(B, 1000)
    acks.leave(C)
    assert acks.proposal(0.0) is None
    assert acks.proposal(1.0) == Proposal(frozenset({MASTER, B}), 5)
    acks.hold(C, 1000)

    log.put(acks)
    acks.hold(C, 1100)
    assert log.answers == []
    assert acks.proposal(1.1) == Proposal(frozenset({MASTER, B, C}), 5)

    acks.confirm(frozenset({MASTER, B, C}), 6)
    assert log.answers == [PutStatus.PUT_OK]


class Group(RuleBasedStateMachine):
    """A master, three replicas, and a controller whose answers may be late or lost."""

    @initialize()
    def begin(self) -> None:
        self.log = Log()
        self.acks = self.log.books(MASTER)
        self.held: dict[int, int] = {}
        self.connected: set[int] = set()
        self.controller: tuple[frozenset[int], int] = (frozenset({MASTER}), 5)
        self.asked: list[Proposal] = []
        self.shown = 0

    @rule(replica=st.sampled_from([2, 3, 4]), share=st.integers(0, 4))
    def report(self, replica: int, share: int) -> None:
        held = self.held.get(replica, 0)
        self.held[replica] = held + (self.log.end - held) * share // 4
        self.connected.add(replica)
        self.acks.hold(replica, self.held[replica])

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def part(self, data: st.DataObject) -> None:
        replica = data.draw(st.sampled_from(sorted(self.connected)))
        self.connected.discard(replica)
        self.acks.leave(replica)

    @rule(size=st.integers(1, NEAR_BYTES))
    def put(self, size: int) -> None:
        self.log.put(self.acks, size)

    @rule(now=st.floats(0, 100), refused=st.booleans())
    def ask(self, now: float, refused: bool) -> None:
        """The answers to earlier requests may be refusals, although some of them are carried out."""
        proposal = self.acks.proposal(now, self.asked if refused else ())
        if proposal is not None:
            self.asked.append(proposal)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), answered=st.booleans())
    def arrive(self, data: st.DataObject, answered: bool) -> None:
        """A request reaches the controller in any order, and its answer may be lost."""
        proposal = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        epoch = self.controller[1]
        if proposal.epoch == epoch:
            self.controller = (proposal.members, epoch + 1)
        if answered:
            self.acks.confirm(*self.controller)

    @rule()
    def poll(self) -> None:
        self.acks.confirm(*self.controller)

    @rule()
    def settle(self) -> None:
        """All proposals of some time are answered: those who have gone are not waited for any more."""
        for now in (200.0, 201.0, 202.0):
            proposal = self.acks.proposal(now)
            if proposal is not None and proposal.epoch == self.controller[1]:
                self.controller = (proposal.members, proposal.epoch + 1)
            self.acks.confirm(*self.controller)
        assert self.acks.required <= self.connected

    @invariant()
    def whatever_is_confirmed_is_held_by_all_whom_the_controller_may_elect(self) -> None:
        """Also what is shown, and what was answered, which is a part of what is confirmed."""
        for replica in self.controller[0] - {MASTER}:
            assert self.held.get(replica, 0) >= self.acks.confirmed

    @invariant()
    def what_consumers_see_is_confirmed_and_never_goes_back(self) -> None:
        shown = self.log.limit if self.log.limit is not None else self.log.end
        assert shown >= self.shown
        self.shown = shown
        for replica in self.controller[0] - {MASTER}:
            assert self.held.get(replica, 0) >= shown


class GroupWithTwoCopies(Group):
    """The same where two copies acknowledge (allAckInSyncStateSet=false)."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.acks = self.log.books(MASTER, all_acknowledge=False, replicas=2)

    @rule(size=st.integers(1, NEAR_BYTES))
    def put(self, size: int) -> None:
        self.log.end += size
        self.acks.wait(self.log.end, 3.0, partial(self.answered, self.log.end))

    def answered(self, end: int, status: PutStatus) -> None:
        members = self.controller[0]
        copies = sum(member == MASTER or self.held.get(member, 0) >= end for member in members)
        assert status is not PutStatus.PUT_OK or copies >= min(2, len(members))


TestGroup, TestGroupWithTwoCopies = Group.TestCase, GroupWithTwoCopies.TestCase
TestGroup.settings = TestGroupWithTwoCopies.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
