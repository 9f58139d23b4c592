"""Random choices of the project: queues, jitter, start offsets. Secrets are never drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Randomness(Protocol):
    """The part of `random.Random` that the project uses; a seeded `random.Random` satisfies it."""

    def random(self) -> float: ...
    def randrange(self, stop: int, /) -> int: ...
    def choice(self, choices: Sequence[T], /) -> T: ...
    def getrandbits(self, count: int, /) -> int: ...
