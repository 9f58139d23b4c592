"""Write the table and the diagram of role changes in `docs/raft.md` from `TRANSITIONS`, the table that the core obeys.

`python docs/raft.py` writes them; with `--check` it only compares, and its exit status says whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ledgermq.ha.raft.roles import TRANSITIONS, Input, Role

PAGE = Path(__file__).with_name("raft.md")
BEGIN, END = "<!-- made by docs/raft.py -->\n", "<!-- end -->\n"


def diagram() -> str:
    """The transitions as a Mermaid state diagram, which GitHub and many editors draw."""
    names = {role: role.name.title().replace("_", "") for role in Role}
    causes: dict[tuple[Role, Role], list[str]] = {}
    for (role, cause), target in TRANSITIONS.items():
        causes.setdefault((role, target), []).append(cause.name.lower())
    arrows = [f"    {names[role]} --> {names[target]}: {', '.join(inputs)}" for (role, target), inputs in causes.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> Follower", *arrows, "```", ""])


def table() -> str:
    """The transitions as a table: one row for each input, one column for each role."""
    head = " | ".join(role.value for role in Role)
    rows = [
        f"| `{cause.name.lower()}` | {cause.value} | "
        + " | ".join(TRANSITIONS[role, cause].value if (role, cause) in TRANSITIONS else "" for role in Role)
        + " |"
        for cause in Input
    ]
    return "\n".join([f"| input | when | {head} |", "|---|---|" + "---|" * len(Role), *rows, ""])


def main() -> None:
    """Write or check the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    drawn = f"{before}{BEGIN}\n{diagram()}\n{table()}\n{END}{after}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(drawn, encoding="utf-8")
    elif drawn != text:
        sys.exit(f"{PAGE} does not show the transitions of ha/raft/roles.py: run python {__file__}")


if __name__ == "__main__":
    main()
