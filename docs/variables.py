"""Write `docs/reference/environment.md`: what clients read from environment variables, from the table in the code.

`python docs/variables.py` writes the page; with `--check` it only compares.
"""

from __future__ import annotations

import enum
import sys
from pathlib import Path

from ledgermq.client.environment import ALL_CLIENTS, VARIABLES

PAGE = Path(__file__).with_name("reference") / "environment.md"

_INTRODUCTION = """# Environment variables of clients

<!-- Made by `python docs/variables.py` from the code; do not edit. -->

One image serves every environment: an argument that a program does not give to `open_producer`, `open_consumer`,
`open_pull_consumer` or `open_admin`, under asyncio and in threads too, is read from its variable when the client is opened. An
empty variable counts as none. A value that is not allowed is an error that names the variable.

| variable | argument | clients | default | unit | meaning |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows: list[str] = []
    for each in VARIABLES:
        clients = "all" if each.clients == ALL_CLIENTS else ", ".join(f"`{name}`" for name in each.clients)
        default = each.default.name.lower() if isinstance(each.default, enum.Enum) else each.default
        shown = "" if default in (None, False) else f"`{default}`"
        rows.append(f"| `{each.name}` | `{each.argument}` | {clients} | {shown} | {each.unit} | {each.meaning} |\n")
    return _INTRODUCTION + "".join(rows)


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the code reads: run python {__file__}")


if __name__ == "__main__":
    main()
