"""What the site shows differently from the files: no Mermaid, which needs a program from elsewhere; a table says the same."""

from __future__ import annotations

import re
from typing import Any

_MERMAID = re.compile(r"^```mermaid\n.*?^```\n", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave Mermaid diagrams out of a page."""
    return _MERMAID.sub("", markdown)
