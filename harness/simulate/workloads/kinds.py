"""Consumers of further kinds: loops that are left early, single messages, small bounds, slow handlers, explicit commits."""

from __future__ import annotations

from typing import ClassVar

import attrs

from ledgermq.remoting.codes import RequestCode

from .members import Members, Style

FEW_MESSAGES, FEW_BYTES = 4, 2000
"""Bounds on the messages of a member that a few messages reach, so that one that is never released stops its queue."""


@attrs.define(eq=False)
class Kinds(Members):
    """Members that handle messages in any order."""

    name: ClassVar[str] = "kinds"
    topic: ClassVar[str] = "K"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="auto_break", take="break", messages_per_queue_max=FEW_MESSAGES),
        Style(name="auto_restarts", restarts=True, messages_per_queue_max=FEW_MESSAGES),
        Style(name="get_one_drops", take="get_one", restarts=True, messages_per_queue_max=FEW_MESSAGES, bytes_max=FEW_BYTES),
        Style(name="auto_raises", raises=True),
        Style(name="get_one", take="get_one", commits=True),
        Style(name="process_stalls", take="process", stalls=True, bytes_max=FEW_BYTES),
        Style(name="auto_commits", commits=True, members_max=2),
    )


@attrs.define(eq=False)
class OrderedKinds(Members):
    """Members that lock queues and handle the messages of each in order."""

    name: ClassVar[str] = "ordered_kinds"
    topic: ClassVar[str] = "KO"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="ordered_auto_break", ordered=True, take="break", messages_per_queue_max=FEW_MESSAGES),
        Style(name="ordered_auto_restarts", ordered=True, restarts=True),
        Style(name="ordered_get_one_drops", ordered=True, take="get_one", restarts=True),
        Style(name="ordered_block", ordered=True, take="block", restarts=True),
        Style(name="ordered_auto_raises", ordered=True, raises=True),
        Style(name="ordered_process_stalls", ordered=True, take="process", stalls=True),
        Style(name="ordered_explicit_stalls", ordered=True, explicit=True, stalls=True),
    )
