"""Properties of a history. Each is a function: its docstring is the specification, and it returns the violations as sentences.

`messages` checks what is stored and read, `changes` what administrators have changed, `consumers` how messages were handled,
`clients` what clients returned to applications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..history import History
from .changes import (
    acknowledged_after_a_deletion_is_readable,
    answered_changes_hold,
    deleted_messages_never_return,
    offsets_stay_inside_their_queue,
)
from .clients import (
    sends_fail_over_in_time,
    waiters_on_closed_clients_are_notified,
    what_was_refused_is_nowhere,
)
from .consumers import (
    nothing_committed_is_handed_out_again,
    nothing_is_acknowledged_before_it_was_handled,
    ordered_queues_are_handled_in_order,
    ordered_queues_have_one_owner,
    paused_queues_hand_out_nothing,
    seeks_continue_at_their_offset,
)
from .messages import (
    acknowledged_puts_are_on_slaves,
    acknowledged_puts_follow_real_time,
    acknowledged_puts_keep_their_order,
    batches_are_whole,
    committed_offsets_never_retreat,
    keys_find_their_messages,
    leaders_show_all_that_is_acknowledged,
    nothing_acknowledged_is_lost,
    nothing_expires_early,
    nothing_is_stored_twice_or_invented,
    nothing_read_is_lost,
    order_within_a_queue_holds,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
    readers_see_all_in_order,
    retries_end_in_the_dead_letters,
    slaves_keep_what_they_confirmed,
)

Checker = Callable[[History], Iterator[str]]

STORE_CHECKERS: tuple[Checker, ...] = (
    nothing_acknowledged_is_lost,
    nothing_expires_early,
    nothing_read_is_lost,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
    nothing_is_stored_twice_or_invented,
    order_within_a_queue_holds,
    batches_are_whole,
    keys_find_their_messages,
)
CLUSTER_CHECKERS: tuple[Checker, ...] = (
    nothing_acknowledged_is_lost,
    nothing_expires_early,
    nothing_read_is_lost,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
    nothing_is_stored_twice_or_invented,
    batches_are_whole,
    acknowledged_puts_are_on_slaves,
    slaves_keep_what_they_confirmed,
    acknowledged_puts_keep_their_order,
    readers_see_all_in_order,
    committed_offsets_never_retreat,
    retries_end_in_the_dead_letters,
    answered_changes_hold,
    acknowledged_after_a_deletion_is_readable,
    deleted_messages_never_return,
    offsets_stay_inside_their_queue,
    nothing_is_acknowledged_before_it_was_handled,
    nothing_committed_is_handed_out_again,
    ordered_queues_are_handled_in_order,
    ordered_queues_have_one_owner,
    paused_queues_hand_out_nothing,
    seeks_continue_at_their_offset,
    sends_fail_over_in_time,
    what_was_refused_is_nowhere,
    waiters_on_closed_clients_are_notified,
)
DLEDGER_CHECKERS: tuple[Checker, ...] = (
    *CLUSTER_CHECKERS,
    acknowledged_puts_follow_real_time,
    leaders_show_all_that_is_acknowledged,
)

__all__ = [
    "CLUSTER_CHECKERS",
    "DLEDGER_CHECKERS",
    "STORE_CHECKERS",
    "Checker",
    "acknowledged_after_a_deletion_is_readable",
    "acknowledged_puts_are_on_slaves",
    "acknowledged_puts_follow_real_time",
    "acknowledged_puts_keep_their_order",
    "answered_changes_hold",
    "batches_are_whole",
    "check_history",
    "committed_offsets_never_retreat",
    "deleted_messages_never_return",
    "keys_find_their_messages",
    "leaders_show_all_that_is_acknowledged",
    "nothing_acknowledged_is_lost",
    "nothing_committed_is_handed_out_again",
    "nothing_expires_early",
    "nothing_is_acknowledged_before_it_was_handled",
    "nothing_is_stored_twice_or_invented",
    "nothing_read_is_lost",
    "offsets_stay_inside_their_queue",
    "order_within_a_queue_holds",
    "ordered_queues_are_handled_in_order",
    "ordered_queues_have_one_owner",
    "paused_queues_hand_out_nothing",
    "queue_offsets_are_dense",
    "queue_offsets_are_given_once",
    "readers_see_all_in_order",
    "retries_end_in_the_dead_letters",
    "seeks_continue_at_their_offset",
    "sends_fail_over_in_time",
    "slaves_keep_what_they_confirmed",
    "waiters_on_closed_clients_are_notified",
    "what_was_refused_is_nowhere",
]


def check_history(history: History, checkers: tuple[Checker, ...] = STORE_CHECKERS) -> list[str]:
    """Return all violations, each prefixed with the name of its property."""
    return [f"{checker.__name__}: {violation}" for checker in checkers for violation in checker(history)]
