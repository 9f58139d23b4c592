"""The callbacks of an application that is to know which queues its consumer reads: called one after the other, with a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, cast

import attrs
import trio

from ..message.message import MessageQueue
from ..world.events import get_logger
from .arguments import LONG_MAX, check_integer, check_queue, shown
from .errors import InvalidArgument

log = get_logger(__name__)

CALLBACK_SECONDS = 10.0
"""How long a callback may take; then it is cancelled, and the consumer goes on as if it had ended."""

Offsets = Mapping[MessageQueue, int]
OnAssigned = Callable[[list[MessageQueue]], Awaitable[Offsets | None] | Offsets | None]
"""Gets queues that the consumer has taken, before it reads them; may return the offsets at which it is to continue in them."""
OnRevoked = Callable[[list[MessageQueue]], Awaitable[object] | object]
"""Gets queues of which the consumer hands out nothing more, in orderly consumption before another member gets them."""


@attrs.frozen
class RebalanceCallbacks:
    """Calls the callbacks of one consumer in the order in which it wants to; what they raise is logged."""

    on_assigned: OnAssigned | None = None
    on_revoked: OnRevoked | None = None
    _at_work: trio.Lock = attrs.field(factory=trio.Lock)

    async def assigned(self, queues: Sequence[MessageQueue]) -> Offsets:
        """Call `on_assigned`, if there are queues; returns the offsets that it wants, or none if it fails."""
        found = await self._call("on_assigned", self.on_assigned, queues, _checked_offsets)
        return {} if found is None else found

    async def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Call `on_revoked`, if there are queues."""
        await self._call("on_revoked", self.on_revoked, queues, lambda _: {})

    async def _call(
        self,
        name: str,
        callback: Callable[[list[MessageQueue]], object] | None,
        queues: Sequence[MessageQueue],
        check: Callable[[Any], Offsets],
    ) -> Offsets | None:
        if callback is None or not queues:
            return None
        async with self._at_work:
            try:
                # Inside the `try`, because what a late callback raises as it is cancelled gets out of the scope, too.
                with trio.move_on_after(CALLBACK_SECONDS):
                    answer = callback(list(queues))
                    if isawaitable(answer):
                        answer = await answer
                    return check(answer)
            except Exception as error:
                log.error("rebalance_callback_failed", exc_info=error, callback=name, queues=[str(queue) for queue in queues])
                return None
        log.warning("rebalance_callback_late", callback=name, queues=len(queues), seconds=CALLBACK_SECONDS)
        return None


def _checked_offsets(offsets: object) -> Offsets:
    if offsets is None:
        return {}
    if not isinstance(offsets, Mapping):
        raise InvalidArgument(f"on_assigned must return None or a mapping of queues to offsets (it returned {shown(offsets)})")
    for queue, offset in cast("Mapping[object, object]", offsets).items():
        check_queue("a queue that on_assigned returned", queue)
        check_integer(f"the offset of {queue}", offset, 0, LONG_MAX)
    return cast("Offsets", offsets)
