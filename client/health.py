"""Whether a client can do its work now, as readiness probes ask."""

from __future__ import annotations

import attrs


@attrs.frozen
class Health:
    """What keeps a client from its work; as a condition, whether nothing does."""

    problems: tuple[str, ...] = ()
    """Each a sentence for an operator."""

    def __bool__(self) -> bool:
        return not self.problems


CLOSED = Health(("the client is closed",))
STOPPED = Health(("the consumer has been stopped",))
