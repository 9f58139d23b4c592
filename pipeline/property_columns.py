"""Splits the property strings of a whole batch into Arrow columns, without a Python loop over messages. Pure.

The result is the same as that of `message/properties.py` for every single string: an item ends at U+0002 or at the end of its
string, a name ends at the first U+0001, items without a name, a value or U+0001 are skipped, and the last item of a name wins.

Usually all messages of a batch have the same names in the same order. Then only the ends of items are searched for, and each
name is compared with that of the first message. Else U+0001 and U+0002 mostly alternate strictly, so the separators alone are
the borders of all items. For a batch with any other string a slower function finds every border by binary search.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

Array = Any

_NAME_END, _ITEM_END = 1, 2
_WORD = 8
"""How many bytes of a name are compared or hashed in one step."""
_SHARED_NAMES_MAX = 64
"""If a message has more properties than this, their names are not compared with those of the first message."""
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(_WORD)] + [(1 << 64) - 1], np.uint64)
"""Masks that keep the first 0 to 8 bytes of a little-endian word."""


@attrs.define(eq=False)
class Properties:
    """The items of all messages of a batch, in order. Every array from `starts` on has one element for each item."""

    text: Array
    """The property string of each message."""
    data: Array
    """The bytes that the borders below refer to, followed by at least `_WORD` others."""
    starts: Array
    """The position at which each name begins."""
    middles: Array
    """The position at which each name ends, which is that of its U+0001."""
    ends: Array
    """The position at which each value ends."""
    rows: Array
    """The message that each item belongs to, ascending; empty if `shared` is given, because it is not needed then."""
    shared: tuple[bytes, ...] | None = None
    """The names of each message in order, if all messages have the same ones in the same order and none twice."""

    @property
    def _sizes(self) -> Array:
        """The size of each name in bytes."""
        return self.middles - self.starts

    def values_of(self, name: str) -> Array:
        """Return one property of every message; null where a message does not have it."""
        if self.shared is not None:
            if name.encode() not in self.shared:
                return pa.nulls(len(self.text), pa.string())
            chosen = slice(self.shared.index(name.encode()), None, len(self.shared))
            return self._cut(self.middles[chosen] + 1, self.ends[chosen])
        items = self._items_of(name.encode())
        rows, count = self.rows[items], len(self.text)
        values = self._cut(self.middles[items] + 1, self.ends[items])
        if len(items) == count and (rows == np.arange(count)).all():
            return values
        found = np.full(count, -1, np.int64)
        found[rows] = np.arange(len(items))  # the last item of a message wins
        return values.take(pa.array(found, mask=found < 0))

    def maps(self) -> Array:
        """Return all properties of every message as a map."""
        if self.shared is not None:
            offsets = np.arange(0, len(self.starts) + 1, len(self.shared), dtype=np.int32)
            return self._maps(offsets, self.starts, self.middles, self.ends)
        kept = self._last_of_each_name()
        starts, middles, ends, rows = (
            (self.starts, self.middles, self.ends, self.rows)
            if kept is None
            else (self.starts[kept], self.middles[kept], self.ends[kept], self.rows[kept])
        )
        offsets = np.zeros(len(self.text) + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=len(self.text)), out=offsets[1:])
        return self._maps(offsets, starts, middles, ends)

    def _maps(self, offsets: Array, starts: Array, middles: Array, ends: Array) -> Array:
        return pa.MapArray.from_arrays(pa.array(offsets), self._cut(starts, middles), self._cut(middles + 1, ends))

    def _items_of(self, name: bytes) -> Array:
        """Return the indexes of the items with this name."""
        items = np.flatnonzero(self._sizes == len(name))
        for at in range(0, len(name), _WORD):
            part = name[at : at + _WORD]
            words = _words(self.data, self.starts[items] + at) & _MASKS[len(part)]
            items = items[words == np.uint64(int.from_bytes(part, "little"))]
        return items

    def _cut(self, starts: Array, ends: Array) -> Array:
        """Return ranges of the bytes as text; the ranges ascend and do not overlap.

        Starts and ends alternate as the offsets of one array; the gaps between ranges are elements that are not used.
        """
        borders = np.empty(2 * len(starts) + 1, np.int32)
        borders[0:-1:2], borders[1::2] = starts, ends
        borders[-1] = ends[-1] if len(ends) else 0
        parts = pa.Array.from_buffers(pa.string(), 2 * len(starts), [None, pa.py_buffer(borders), pa.py_buffer(self.data)])
        return parts.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))

    def _last_of_each_name(self) -> Array | None:
        """Return the items to keep if a message has a name twice; None if no message has."""
        if not len(self.rows):
            return None
        hashes = self._name_hashes()
        if not self._may_repeat(hashes):
            return None
        names = self._cut(self.starts, self.middles).dictionary_encode()
        combined = self.rows * len(names.dictionary) + names.indices.to_numpy()
        _, first_from_end = np.unique(combined[::-1], return_index=True)
        kept = np.sort(len(combined) - 1 - first_from_end)
        return None if len(kept) == len(combined) else kept

    def _name_hashes(self) -> Array:
        """Return a hash of each name; equal names have equal hashes."""
        sizes = self._sizes
        hashes = (_words(self.data, self.starts) & _MASKS[np.minimum(sizes, _WORD)]) * _HASH_FACTOR
        for at in range(_WORD, int(sizes.max()), _WORD):
            longer = np.flatnonzero(sizes > at)
            words = _words(self.data, self.starts[longer] + at) & _MASKS[np.minimum(sizes[longer] - at, _WORD)]
            hashes[longer] = (hashes[longer] ^ words ^ np.uint64(at)) * _HASH_FACTOR
        return hashes

    def _may_repeat(self, hashes: Array) -> bool:
        """Return whether a message has a name twice, or two names with the same hash.

        Every name has one of 64 bits. If no bit occurs twice in a message, the sum of its bits equals their union.
        """
        bits = np.left_shift(np.uint64(1), hashes >> np.uint64(58))
        firsts = np.flatnonzero(np.diff(self.rows, prepend=-1))
        doubtful = np.flatnonzero(np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts))
        if not len(doubtful):
            return False
        # Two names may share a bit: compare the whole hashes of these messages.
        chosen = np.flatnonzero(np.isin(self.rows, self.rows[firsts[doubtful]]))
        pairs = np.lexsort((hashes[chosen], self.rows[chosen]))
        rows, values = self.rows[chosen][pairs], hashes[chosen][pairs]
        return bool(((rows[1:] == rows[:-1]) & (values[1:] == values[:-1])).any())


def _words(data: Array, places: Array) -> Array:
    """Return the eight bytes at each position as a number."""
    return np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))[places]


def as_text(raw: Array) -> Array:
    """Turn bytes into text; bytes that are not UTF-8 are replaced."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], pa.string())


def split_properties(text: Array) -> Properties:
    """Split the property strings of a batch into items."""
    count = len(text)
    _, offsets_buffer, data_buffer = text.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[text.offset : text.offset + count + 1].astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    # A copy with some bytes after it, so that words at the end of the last string can be read.
    data = np.zeros(end - begin + _WORD, np.uint8)
    if data_buffer is not None:
        data[: end - begin] = np.frombuffer(data_buffer, np.uint8, end - begin, begin)
    offsets -= begin
    alike = _alike(text, data, offsets)
    if alike is not None:
        return alike
    items = _alternating(data, offsets)
    return Properties(text, data, *(_any_order(data, offsets) if items is None else items))


def _alike(text: Array, data: Array, offsets: Array) -> Properties | None:
    """Return the items if all messages have the same names in the same order, as those of one producer do; else None."""
    names = _names(data[: offsets[1]].tobytes()) if len(text) else ()
    if not names:
        return None
    count, each = len(text), len(names)
    item_ends = np.flatnonzero(data[: offsets[-1]] == _ITEM_END)
    if data[offsets[1] - 1] == _ITEM_END:
        if len(item_ends) != count * each or not (item_ends[each - 1 :: each] == offsets[1:] - 1).all():
            return None
        ends = item_ends.reshape(count, each)
    else:  # strings that Java 4.9 writes lack the last U+0002
        if len(item_ends) != count * (each - 1):
            return None
        ends = np.concatenate([item_ends.reshape(count, each - 1), offsets[1:, None]], axis=1)
    starts = np.empty((count, each), np.int64)
    starts[:, 0] = offsets[:-1]
    np.add(ends[:, :-1], 1, out=starts[:, 1:])
    middles = starts + np.array([len(name) for name in names])
    # If an item ends earlier than one with this name and a value can, the ends are not those of these items.
    if not (middles + 1 < ends).all() or not _begin_with(data, starts, names):
        return None
    return Properties(text, data, starts.ravel(), middles.ravel(), ends.ravel(), np.zeros(0, np.int64), names)


def _names(raw: bytes) -> tuple[bytes, ...]:
    """Return the names in one string in order; none if one is empty or occurs twice, or if there are too many."""
    items = raw.removesuffix(bytes([_ITEM_END])).split(bytes([_ITEM_END]))
    names = tuple(item.partition(bytes([_NAME_END]))[0] for item in items)
    return names if all(names) and len(set(names)) == len(names) <= _SHARED_NAMES_MAX else ()


def _begin_with(data: Array, starts: Array, names: tuple[bytes, ...]) -> bool:
    """Return whether the items in each column begin with the column's name and U+0001."""
    for column, name in enumerate(names):
        wanted = name + bytes([_NAME_END])
        for at in range(0, len(wanted), _WORD):
            part = wanted[at : at + _WORD]
            words = _words(data, starts[:, column] + at) & _MASKS[len(part)]
            if not (words == np.uint64(int.from_bytes(part, "little"))).all():
                return False
    return True


Items = tuple[Array, Array, Array, Array]
"""Starts, middles, ends and rows, as in `Properties`."""


def _separators(data: Array, end: int) -> tuple[Array, Array]:
    """Return the positions of U+0001 and U+0002, and which of the two is at each."""
    places = np.flatnonzero(data[:end] <= _ITEM_END)
    kinds = data[places]
    if not kinds.all():  # some are U+0000, an ordinary character
        places = places[kinds > 0]
        kinds = data[places]
    return places, kinds


def _alternating(data: Array, offsets: Array) -> Items | None:
    """Return the items if U+0001 and U+0002 alternate and every item ends within its string; else None."""
    row_ends = offsets[1:]
    places, kinds = _separators(data, int(offsets[-1]))
    filled = row_ends > offsets[:-1]
    open_ends = row_ends[filled & (data[row_ends - 1] != _ITEM_END)]
    is_open = np.zeros(len(places), bool)
    if len(open_ends):  # strings that Java 4.9 writes lack the last U+0002
        at = np.searchsorted(places, open_ends)
        places, kinds, is_open = (
            np.insert(values, at, inserted) for values, inserted in ((places, open_ends), (kinds, _ITEM_END), (is_open, True))
        )
    if len(places) % 2 or not ((kinds[0::2] == _NAME_END).all() and (kinds[1::2] == _ITEM_END).all()):
        return None
    middles, ends = places[0::2], places[1::2]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1 - is_open[1:-1:2]
    count = len(row_ends)
    each, left = divmod(len(starts), count) if count else (0, 0)
    if each and not left and (starts[::each] == offsets[:-1]).all():  # all messages have the same number of items
        rows = np.repeat(np.arange(count), each)
    else:
        rows = np.repeat(np.arange(count), np.diff(np.searchsorted(starts, offsets)))
    return _kept(starts, middles, ends, rows)


def _any_order(data: Array, offsets: Array) -> Items:
    """Return the items of strings with any order of separators."""
    row_starts, row_ends, end = offsets[:-1], offsets[1:], int(offsets[-1])
    places, kinds = _separators(data, end)
    name_ends, item_ends = places[kinds == _NAME_END], places[kinds == _ITEM_END]
    # An item begins at the start of a string and after every U+0002; it ends at the next one, or at the end of its string.
    is_start = np.zeros(end + 1, bool)  # marking is much faster than sorting both kinds together
    is_start[row_starts[row_ends > row_starts]] = True
    is_start[item_ends + 1] = True
    starts = np.flatnonzero(is_start[:-1])
    rows = np.searchsorted(offsets, starts, "right") - 1
    ends = row_ends[rows]
    following = np.searchsorted(item_ends, starts)
    bounded = following < len(item_ends)
    ends[bounded] = np.minimum(ends[bounded], item_ends[following[bounded]])
    split = np.searchsorted(name_ends, starts)
    middles = np.full(len(starts), end)
    known = split < len(name_ends)
    middles[known] = name_ends[split[known]]
    return _kept(starts, middles, ends, rows)


def _kept(starts: Array, middles: Array, ends: Array, rows: Array) -> Items:
    """Leave out items without a name or a value."""
    kept = (middles > starts) & (middles + 1 < ends)
    return (starts, middles, ends, rows) if kept.all() else (starts[kept], middles[kept], ends[kept], rows[kept])
