"""`python -m harness.processes.unfenced ARGUMENTS...`: the command `ledgermq`, whose broker fences no producers, as Apache's.

Checkers of writing exactly once must find duplicates with it; otherwise they could not find any.
"""

from __future__ import annotations

from ledgermq.broker.tables.numbered_sends import NumberedSends
from ledgermq.cli.main import main as command
from ledgermq.remoting.dispatcher import Dispatcher


def register_nothing(self: NumberedSends, dispatcher: Dispatcher) -> None:
    """Leave the request for a fence unsupported; then clients do not number their sends either."""
    del self, dispatcher


if __name__ == "__main__":
    NumberedSends.register = register_nothing  # type: ignore[method-assign]
    command()
