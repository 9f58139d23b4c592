"""The requests of one page: many at the same time, each with a limit, and whoever does not answer is named and left alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import product
from typing import Self, TypeVar

import attrs
import trio

from ...client.admin import Admin
from ...client.admin.errors import NoSuchGroup
from ...client.errors import ClientError, InvalidArgument, NotFound, NotOnline, TopicNotExist
from ...message.units import MASTER_ID

S = TypeVar("S")
T = TypeVar("T")

ANSWER_SECONDS = 3.0
"""How long a page waits for a broker."""

_HAS_NONE = (NoSuchGroup, NotOnline, NotFound, TopicNotExist)
"""The answers of a broker that does not have what it was asked for."""


@attrs.define(eq=False)
class Survey:
    """Asks the masters of a cluster for one page."""

    admin: Admin
    masters: Mapping[str, str]
    """The address of each broker name's master."""
    notes: list[str]
    """What is missing in the answers, and why: a sentence for each name without a master and for each broker that is silent."""
    _silent: set[str] = attrs.field(factory=set[str])

    @classmethod
    async def begin(cls, admin: Admin) -> Self:
        """Find the masters.

        Raises:
            ClientError: no name server answers.
        """
        cluster = await admin.cluster()
        masters = {each.name: str(each.addresses[MASTER_ID]) for each in cluster.brokers if MASTER_ID in each.addresses}
        return cls(
            admin, masters, [f"{name} has no master now, so its answers are missing." for name in cluster.without_master()]
        )

    @property
    def complete(self) -> bool:
        """Whether all brokers have answered."""
        return not self.notes

    @property
    def names(self) -> dict[str, str]:
        """The broker name of each master's address."""
        return {address: name for name, address in self.masters.items()}

    def everywhere(self, things: Iterable[S]) -> Iterable[tuple[str, S]]:
        """Each master's address with each of the things, to `ask` for."""
        return product(self.masters.values(), things)

    async def ask(self, asked: Iterable[tuple[str, S]], ask: Callable[[str, S], Awaitable[T]]) -> dict[tuple[str, S], T]:
        """Ask brokers for things, all at the same time, for at most `ANSWER_SECONDS`; one that was silent is not asked again.

        Returns: the answers in the order of `asked`, without those of brokers that do not have the thing or did not answer.

        Raises:
            InvalidArgument: what is asked for cannot exist.
        """
        pairs = [pair for pair in asked if pair[0] not in self._silent]
        answers: dict[tuple[str, S], T] = {}
        invalid: list[InvalidArgument] = []

        async def one(broker: str, thing: S) -> None:
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    answers[broker, thing] = await ask(broker, thing)
            except _HAS_NONE:
                pass
            except InvalidArgument as error:
                invalid.append(error)
            except trio.TooSlowError:
                self._miss(broker, f"{broker} did not answer within {ANSWER_SECONDS:.0f} s.")
            except ClientError as error:
                self._miss(broker, str(error) if broker in str(error) else f"{broker}: {error}")

        async with trio.open_nursery() as nursery:
            for broker, thing in pairs:
                nursery.start_soon(one, broker, thing)
        if invalid:
            raise invalid[0]
        return {pair: answers[pair] for pair in pairs if pair in answers}

    def _miss(self, broker: str, reason: str) -> None:
        if broker not in self._silent:
            self._silent.add(broker)
            self.notes.append(reason)
