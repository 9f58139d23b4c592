"""Decides whether, where and how long a failed send is retried. Pure: it decides and does not wait.

One send has a total time limit. Each attempt gets a share of the remaining time, so that a broker that never answers does not
use it up while another broker is available. Failures after which the message may be in a log cost one of `retries` if a retry
may store it twice; other failures are retried, with growing pauses, until the time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..message.message import MessageQueue
from .errors import ClientError, NoPermission, TopicNotExist

SEND_TIMEOUT_SECONDS = 3.0
RETRIES = 2
PAUSE_SECONDS = 0.02
PAUSE_SECONDS_MAX = 0.5
SEARCH_PAUSE_SECONDS_MAX = 0.1
"""The longest mean pause while no master of the broker's group is known, because a new one is elected soon."""
SHARE_SECONDS_MIN = 0.05


def attempt_seconds(left_seconds: float, retries_left: int, *, elsewhere: bool) -> float:
    """How long one attempt may take: all of the remaining time, or a share of it if another broker could be tried."""
    if not elsewhere or retries_left <= 0:
        return left_seconds
    return min(left_seconds, max(left_seconds / (retries_left + 1), SHARE_SECONDS_MIN))


@attrs.define
class Attempts:
    """The attempts of one send after its first failure.

    Args:
        retries_left: how many retries are left after failures that may have stored the message.
    """

    retries_left: int
    made: int = 1
    may_have_been_stored: bool = False
    _pause: float = PAUSE_SECONDS

    def again(self, failure: ClientError, *, elsewhere: bool, spread: float, once: bool = False) -> float | None:
        """Record a failure; return the seconds to pause before the next attempt, or None to give up.

        Args:
            once: the next attempt stores nothing if this one has, so it costs no retry.
            elsewhere: whether another broker can be tried next; then there is no pause.
            spread: a random number in 0..1 that spreads the pauses of many senders.
        """
        self.may_have_been_stored |= failure.may_have_been_stored
        if not failure.retriable:
            return None
        if (failure.may_have_been_stored and not once) or isinstance(failure, NoPermission | TopicNotExist):
            # The two refusals are about configuration: another broker may differ, the same one will not within seconds.
            if self.retries_left <= 0:
                return None
            self.retries_left -= 1
        self.made += 1
        if elsewhere:
            return 0.0
        pause = self._pause * (0.5 + spread)
        self._pause = min(self._pause * 2, SEARCH_PAUSE_SECONDS_MAX if failure.invalid_metadata else PAUSE_SECONDS_MAX)
        return pause


def choose_queue(queues: Sequence[MessageQueue], counter: int, avoid: frozenset[str], last_broker: str | None = None) -> int:
    """Choose the queue for an attempt; return its index.

    It is, from `counter` on, the first queue whose broker is neither in `avoid` nor `last_broker`; else the first whose broker
    is not `last_broker`; else the next one. So a broker is never tried twice in a row if there is another.
    """
    count = len(queues)
    second = None
    for step in range(count):
        at = (counter + step) % count
        broker_name = queues[at].broker_name
        if broker_name == last_broker:
            continue
        if broker_name not in avoid:
            return at
        if second is None:
            second = at
    return counter % count if second is None else second
