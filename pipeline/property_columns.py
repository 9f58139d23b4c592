"""Properties of many messages as Arrow columns: one map for each, and single ones by name, without a loop over messages.

The rules are those of `message/properties.py`: items end at U+0002 or at the end of the text, a name ends at the first U+0001,
items without a name, a value or U+0001 are skipped, and the last of a name wins.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

Array = Any

_NAME_END, _ITEM_END = 1, 2
_BITS = 62
"""Distinct names up to which duplicates are found by one bit for each name."""


@attrs.define(eq=False)
class Properties:
    """The items of all messages of a batch, one behind the other."""

    text: Array
    """The property strings."""
    names: Array
    """Distinct names, as text."""
    codes: Array
    """For each item its name's place in `names`."""
    values: Array
    rows: Array
    """For each item the message that it belongs to; ascending."""

    def values_of(self, name: str) -> Array:
        """One property of every message; null where it has none."""
        place = self.names.index(pa.scalar(name, pa.string())).as_py() if len(self.names) else -1
        found = np.full(len(self.text), -1, np.int64)
        if place >= 0:
            items = np.flatnonzero(self.codes == place)
            found[self.rows[items]] = items
        return self.values.take(pa.array(found, mask=found < 0))

    def maps(self) -> Array:
        """All properties of every message as a map."""
        counts = np.bincount(self.rows, minlength=len(self.text))
        offsets = np.zeros(len(self.text) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        names = self.names.take(pa.array(self.codes)) if len(self.codes) else pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets), names, self.values)


def as_text(raw: Array) -> Array:
    """Bytes as text; what is no UTF-8 is replaced, never an error."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())


def split_properties(text: Array) -> Properties:
    """Take property strings apart."""
    count = len(text)
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[text.offset : text.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    begin, end = int(offsets[0]), int(offsets[-1])
    name_ends = np.flatnonzero(data[begin:end] == _NAME_END) + begin
    item_ends = np.flatnonzero(data[begin:end] == _ITEM_END) + begin
    # An item begins at the start of a text and behind every U+0002; it ends at one, or where its text ends.
    row_starts, row_ends = offsets[:-1], offsets[1:]
    is_start = np.zeros(end - begin + 1, bool)  # marked, as sorting both kinds together takes far longer
    is_start[row_starts[row_ends > row_starts] - begin] = True
    is_start[item_ends + 1 - begin] = True
    starts = np.flatnonzero(is_start[:-1]) + begin
    rows = np.searchsorted(offsets, starts, "right") - 1
    ends = row_ends[rows]
    following = np.searchsorted(item_ends, starts)
    bounded = following < len(item_ends)
    ends[bounded] = np.minimum(ends[bounded], item_ends[following[bounded]])
    split = np.searchsorted(name_ends, starts)
    has_name_end = split < len(name_ends)
    middles = np.where(has_name_end, name_ends[np.minimum(split, max(len(name_ends) - 1, 0))] if len(name_ends) else 0, end)
    kept = (middles > starts) & (middles + 1 < ends)
    starts, middles, ends, rows = starts[kept], middles[kept], ends[kept], rows[kept]
    # Names and values alternate in one array over the same bytes; gaps between items are elements of it that nobody takes.
    borders = np.empty(4 * len(starts) + 1, np.int32)
    borders[0:-1:4], borders[1::4], borders[2::4], borders[3::4] = starts, middles, middles + 1, ends
    borders[-1] = end
    parts = pa.Array.from_buffers(pa.string(), 4 * len(starts), [None, pa.py_buffer(borders), data_buffer or pa.py_buffer(b"")])
    at = np.arange(0, 4 * len(starts), 4)
    names = parts.take(pa.array(at)).dictionary_encode()
    values = parts.take(pa.array(at + 2))
    codes = names.indices.to_numpy()
    last = _last_of_each_name(rows, codes, len(names.dictionary))
    if last is not None:
        codes, rows, values = codes[last], rows[last], values.take(pa.array(last))
    return Properties(text, names.dictionary, codes, values, rows)


def _last_of_each_name(rows: Array, codes: Array, distinct: int) -> Array | None:
    """The items to keep if a message has a name twice; None if none has."""
    if not len(rows):
        return None
    if distinct <= _BITS:
        bits = np.left_shift(np.int64(1), codes.astype(np.int64))
        firsts = np.flatnonzero(np.diff(rows, prepend=-1))
        if (np.add.reduceat(bits, firsts) == np.bitwise_or.reduceat(bits, firsts)).all():
            return None
    combined = rows * distinct + codes
    _, first_from_end = np.unique(combined[::-1], return_index=True)
    kept = np.sort(len(combined) - 1 - first_from_end)
    return None if len(kept) == len(combined) else kept
