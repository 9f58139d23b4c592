"""Boxes, arrows and texts of the pictures in the manual, as SVG that reads well on light and dark pages."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Literal

import attrs

FILLS = {
    "plain": "#ffffff",
    "client": "#fff3e0",
    "server": "#e0f2f1",
    "copy": "#e8eaf6",
    "strong": "#00897b",
    "weak": "#eceff1",
}
Anchor = Literal["start", "middle", "end"]

_FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">
<style>text{{font:14px system-ui,sans-serif;fill:#263238}} .small{{font-size:12px;fill:#546e7a}} .light{{fill:#fff}}</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" fill="#546e7a"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" fill="#fafafa"/>
{parts}
</svg>
"""


@attrs.define
class Picture:
    """A picture of a fixed size; parts that are added later lie above."""

    title: str
    width: int
    height: int
    _parts: list[str] = attrs.field(factory=list[str])

    def text(self, x: float, y: float, text: str, *, anchor: Anchor = "middle", kind: str = "") -> None:
        """Add one line of text; `y` is its baseline."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, text: str = "", fill: str = "plain") -> None:
        """Add a rectangle with lines of text in its middle."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{FILLS[fill]}" stroke="#90a4ae"/>'
        )
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            baseline = y + height / 2 + 5 + (number - (len(lines) - 1) / 2) * 18
            self.text(x + width / 2, baseline, line, kind="light" if fill == "strong" else "")

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Add a bar of a chart."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{height:g}" fill="{FILLS[fill]}"/>')

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Add a thin line."""
        self._parts.append(f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="#b0bec5" fill="none"/>')

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """Add an arrow through these points."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self._parts.append(
            f'<path d="M{path}" fill="none" stroke="#546e7a" stroke-width="1.5" marker-end="url(#head)"{start}/>'
        )

    def svg(self) -> str:
        """The whole file."""
        return _FRAME.format(width=self.width, height=self.height, title=escape(self.title), parts="\n".join(self._parts))


def written_or_checked(files: dict[Path, str], *, check: bool) -> list[Path]:
    """Write files, or only compare them; returns those that differ."""
    different: list[Path] = []
    for path, text in files.items():
        if check and not (path.exists() and path.read_text(encoding="utf-8") == text):
            different.append(path)
        if not check:
            path.write_text(text, encoding="utf-8")
    return different
