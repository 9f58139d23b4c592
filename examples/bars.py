"""Draws bars as a PNG image with NumPy alone, so that the demo does not have to install a library for plots."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, BAR, GAP, MARGIN = 320, 36, 14, 40
"""Pixels: the height of the image, the width of a bar, the gap between two bars, and the space around them."""
SCALE = 2
"""How many pixels wide and high one dot of a digit is."""
WHITE, BLACK, BLUE = (255, 255, 255), (40, 40, 40), (70, 120, 200)
_ROWS = (
    "111 010 111 111 101 111 111 111 111 111",
    "101 110 001 001 101 100 100 001 101 101",
    "101 010 111 111 111 111 111 010 111 111",
    "101 010 100 001 001 001 101 010 101 001",
    "111 111 111 111 001 111 111 010 111 111",
)
"""The digits 0 to 9, each three dots wide and five dots high."""
_GLYPHS = np.array([[[dot == "1" for dot in digit] for digit in row.split()] for row in _ROWS]).swapaxes(0, 1)

Image = Any


def draw_bars(bars: Sequence[tuple[int, int]], path: Path) -> None:
    """Write an image with one bar for each label: the label is below the bar, its value above it."""
    width = 2 * MARGIN + len(bars) * (BAR + GAP) - GAP
    image = np.full((HEIGHT, width, 3), WHITE, np.uint8)
    floor, most = HEIGHT - MARGIN, max(value for _, value in bars)
    image[floor : floor + 2, MARGIN // 2 : -MARGIN // 2] = BLACK
    for at, (label, value) in enumerate(bars):
        left = MARGIN + at * (BAR + GAP)
        top = floor - (HEIGHT - 2 * MARGIN) * value // most
        image[top:floor, left : left + BAR] = BLUE
        _write(image, str(value), left + BAR // 2, top - 16)
        _write(image, str(label), left + BAR // 2, floor + 10)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_png(image))


def _write(image: Image, digits: str, middle: int, top: int) -> None:
    """Write a number, centred."""
    left = middle - len(digits) * 2 * SCALE
    for digit in digits:
        glyph = _GLYPHS[int(digit)].repeat(SCALE, 0).repeat(SCALE, 1)
        image[top : top + 5 * SCALE, left : left + 3 * SCALE][glyph] = BLACK
        left += 4 * SCALE


def _png(image: Image) -> bytes:
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row begins with its filter, 0 for none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits for each of red, green and blue
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes())) + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
