"""Bugs in the controller's decisions that the simulator of its core must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ledgermq.ha.controller import decisions
from ledgermq.ha.controller.liveness import Liveness

from .outcome import Outcome
from .simulate.controller import simulate_controller


def elect_one_outside(original: Any) -> Callable[..., Any]:
    def elect(one: Any, situation: Any, **without: Any) -> Any:
        return original(msgspec.structs.replace(one, in_sync=frozenset(one.replicas)), situation, **without)

    return elect


def judge_at_once(_: Any) -> Callable[..., None]:
    return lambda *_: None


def _accept_a_stale_set(original: Any) -> Callable[..., Any]:
    def decide(request: Any, body: Any, situation: Any) -> Any:
        one = situation.state.sets.get(request.broker_name)
        return original(request, msgspec.structs.replace(body, sync_state_set_epoch=one.in_sync_epoch), situation)

    return decide


def keep_those_who_crashed(_: Any) -> Callable[..., list[Any]]:
    return lambda *_args, **_settings: list[Any]()


def _keep_the_epoch(original: Any) -> Callable[..., Any]:
    def election_of(one: Any, *arguments: Any, **without: Any) -> Any:
        event = original(one, *arguments, **without)
        return msgspec.structs.replace(event, master_epoch=max(one.master_epoch, 1))

    return election_of


CONTROLLER_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], Callable[[int], Outcome]], ...] = (
    ("controller: elect one outside the set", decisions, "elect", elect_one_outside, simulate_controller),
    ("controller: a fresh leader judges at once", Liveness, "begin", judge_at_once, simulate_controller),
    ("controller: accept a stale set", decisions, "decide_alteration", _accept_a_stale_set, simulate_controller),
    ("controller: keep those who crashed", decisions, "_after_restart", keep_those_who_crashed, simulate_controller),
    ("controller: keep the epoch", decisions, "election_of", _keep_the_epoch, simulate_controller),
)
"""Name, class or module, attribute, the function that makes the faulty replacement, and the simulator that must find it."""
