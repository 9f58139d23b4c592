"""A log around another one: what it does not do itself, the log inside does."""

from __future__ import annotations

import inspect
from typing import Any, cast

import attrs
import pytest

from ledgermq.store.log.commitlog import CommitLog
from ledgermq.store.log.wrapping_log import WrappingCommitLog

MEMBERS = sorted(name for name in vars(CommitLog) if not name.startswith("_"))


@attrs.define
class Recorded:
    """Answers every question with its name, and every call with what it was called with."""

    name: str

    def __getattr__(self, name: str) -> Any:
        if isinstance(vars(CommitLog)[name], property):
            return f"the {name}"
        if inspect.iscoroutinefunction(vars(CommitLog)[name]):

            async def waited(*args: Any, **kwargs: Any) -> Any:
                calls.append((name, args, kwargs))

            return waited

        def called(*args: Any, **kwargs: Any) -> Any:
            calls.append((name, args, kwargs))
            return f"what {name} found"

        return called


calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []


@pytest.mark.parametrize("name", MEMBERS)
async def test_every_member_reaches_the_log_inside(name: str) -> None:
    """With all its arguments, and what comes back is given back."""
    calls.clear()
    log = WrappingCommitLog(cast("CommitLog", Recorded("inside")))
    member = vars(CommitLog)[name]
    if isinstance(member, property):
        assert getattr(log, name) == f"the {name}"
        return
    parameters = list(inspect.signature(member).parameters.values())[1:]
    positional = [f"a {one.name}" for one in parameters if one.kind is not one.KEYWORD_ONLY]
    by_name = {one.name: f"a {one.name}" for one in parameters if one.kind is one.KEYWORD_ONLY}

    result = getattr(log, name)(*positional, **by_name)
    if inspect.isawaitable(result):
        await result
    elif inspect.signature(member).return_annotation != "None":
        assert result == f"what {name} found"

    assert calls == [(name, tuple(positional), by_name)]
