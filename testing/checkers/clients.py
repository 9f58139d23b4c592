"""Properties of what clients return to the applications that use them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..history import End, History

SLACK_SECONDS = 0.01
"""A send may exceed its total time by this much."""
CLOSED_SECONDS = 5.0
"""Waits on a client must end within this time after it was closed; meanwhile the client unregisters from brokers."""


def sends_fail_over_in_time(history: History) -> Iterator[str]:
    """While one path to a broker is open, a send stores its message within its total time, whatever happened to other paths."""
    for send in history.timed_sends:
        took = min(send.ended, 1e9) - send.began
        if not send.stored:
            yield f"the send of {send.number} at {send.began:.2f} s ended after {took:.2f} s with {send.error or 'nothing'}"
        elif took > send.seconds + SLACK_SECONDS:
            yield f"the send of {send.number} at {send.began:.2f} s took {took:.2f} s of {send.seconds:.2f} s"


def what_was_refused_is_nowhere(history: History) -> Iterator[str]:
    """A message whose send failed with `may_have_been_stored = False` is stored nowhere.

    Bytes that were written and withdrawn may return in one case: after a power cut before the next sync.
    """
    refused = {put.number: put for put in history.puts if put.refused}
    for snapshot in history.snapshots:
        for queue, messages in snapshot.queues.items():
            for message in messages:
                put = refused.get(message.number)
                if put is not None and not (put.withdrawn and End.POWER in history.ends[put.epoch : snapshot.epoch]):
                    yield (
                        f"message {put.number} cannot have been stored, its producer was told, and is at "
                        f"{queue}@{message.queue_offset} on {snapshot.host}"
                    )


def waiters_on_closed_clients_are_notified(history: History) -> Iterator[str]:
    """A wait on a client that is closed ends soon, with `Closed`."""
    for wait in history.waits:
        if wait.closed_at == inf:
            continue
        if wait.ended_at > max(wait.closed_at, wait.began) + CLOSED_SECONDS:
            yield f"{wait.what} was not told that its client was closed at {wait.closed_at:.2f} s"
        elif wait.error != "Closed":
            yield f"{wait.what} ended with {wait.error or 'nothing'} when its client was closed at {wait.closed_at:.2f} s"
