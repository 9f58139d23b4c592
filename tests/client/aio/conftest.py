"""A broker for all tests of a file, and a topic for each."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ledgermq.testing.embedded import Embedded, start_embedded


@pytest.fixture(scope="module")
def cluster() -> Generator[Embedded]:
    with start_embedded() as embedded:
        yield embedded


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test alone."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:100]
