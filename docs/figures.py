"""Draw the charts of `docs/figures.md` from the results in `docs/figures/*.json`.

A result is what a program of `bench/` writes with `--json docs/figures/NAME.json`. Only ratios are drawn: they hold on other
machines, too. `python docs/figures.py` writes pictures and page; with `--check` it only compares.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from svg import Picture, written_or_checked

PAGE = Path(__file__).with_name("figures.md")
RESULTS, PICTURES = PAGE.with_suffix(""), PAGE.with_name("pictures")
BEGIN, END = "<!-- made by docs/figures.py -->\n", "<!-- end -->\n"
OTHERS, OTHERS_MAX = "cores used by others", 0.5
NAMES_WIDTH, BAR_WIDTH, ROW = 400, 380, 30


def ratios_of(result: dict[str, Any]) -> dict[str, list[float]]:
    """The ratios of one result, run by run: ours to Apache's, or of two of our own where the name of a metric says so.

    Where other processes used much of the machine, only memory is compared: that takes the same then, and a start does not.
    """
    ours = result["runs"]["ours"]
    busy = statistics.median(ours.get(OTHERS, [0.0])) > OTHERS_MAX
    of_sides = {f"{name}, ours / Apache's": values for name, values in result["ratios"].items() if name != OTHERS}
    ratios = of_sides | {name: values for name, values in ours.items() if " / " in name}
    return {name: values for name, values in ratios.items() if "MiB" in name or not busy}


def chart(title: str, ratios: dict[str, list[float]]) -> Picture:
    """A bar for the median of each ratio, a line for its spread, and a mark at 1."""
    picture = Picture(title, NAMES_WIDTH + BAR_WIDTH + 140, 40 + ROW * len(ratios))
    scale = BAR_WIDTH / max(1.25, *(max(values) for values in ratios.values()))
    one = NAMES_WIDTH + scale
    picture.text(one, 20, "equal", kind="small")
    for number, (name, values) in enumerate(ratios.items()):
        y, middle = 30 + number * ROW, statistics.median(values)
        picture.text(NAMES_WIDTH - 10, y + 17, name, anchor="end")
        picture.bar(NAMES_WIDTH, y + 4, middle * scale, ROW - 12, "strong")
        picture.line(NAMES_WIDTH + min(values) * scale, y + 13, NAMES_WIDTH + max(values) * scale, y + 13)
        spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
        picture.text(NAMES_WIDTH + BAR_WIDTH + 10, y + 17, f"{middle:.2f}{spread}", anchor="start", kind="small")
    picture.line(one, 26, one, 36 + ROW * len(ratios))
    return picture


def section(name: str, result: dict[str, Any]) -> str:
    """What the page says of one result."""
    machine, runs = result["machine"], max(len(values) for values in ratios_of(result).values())
    load = machine["load_average"][0]
    apache = f", Apache RocketMQ {result['versions']['apache']}" if "apache" in result["runs"] else ""
    return (
        f"\n### {result['title']}\n\n![Ratios: {result['title']}](pictures/figure-{name}.svg)\n\n"
        f"`{result['command']}`: {runs} runs, the median and the spread; LedgerMQ {result['versions']['ours']}{apache}; "
        f"{machine['python'].partition(',')[0]}, {machine['cores']} cores, a load of {load:.0f} at the end.\n"
    )


def main() -> None:
    """Write or check the page and its pictures."""
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} lacks the marks {BEGIN!r} and {END!r}")
    made = "".join(section(name, result) for name, result in results.items())
    files = {PICTURES / f"figure-{name}.svg": chart(each["title"], ratios_of(each)).svg() for name, each in results.items()}
    files[PAGE] = before + begin + made + "\n" + end + after
    different = written_or_checked(files, check="--check" in sys.argv[1:])
    if different:
        sys.exit(f"{', '.join(map(str, different))}: not as the results say: run python {__file__}")


if __name__ == "__main__":
    main()
