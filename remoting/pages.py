"""What `http.py` serves: pages by their paths. Apart from it, because servers that serve none need not import h11."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import attrs

TEXT, JSON = "text/plain; charset=utf-8", "application/json"


@attrs.frozen
class Page:
    """The answer to a GET: one body, or the parts of a long one, between which other tasks run."""

    status: int
    content_type: str
    body: bytes | AsyncIterator[bytes]


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""The pages by their paths; queries behind a path are ignored."""
