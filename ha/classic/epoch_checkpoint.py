"""The text of RocketMQ's file of epochs, `epochFileCheckpoint` (CheckpointFile, EpochFileCache).

Line 1 is the number of entries, line 2 their CRC-32 without its highest bit, where 0 means unchecked; then one line for each
epoch, its number and start with `-` between them. RocketMQ takes a file without entries for a lost one and reads the backup.
"""

from __future__ import annotations

from ...message.checksum import crc32
from ...message.numbers import int_of, long_of
from ..errors import CorruptEpochs
from .epochs import EPOCHS_MAX, UNKNOWN_WRITER, Epoch, EpochList

_CRC_BITS = 0x7FFFFFFF


def encode_checkpoint(epochs: EpochList) -> bytes:
    """Encode the text of the file."""
    lines = "".join(f"{entry.number}-{entry.start}\n" for entry in epochs).encode()
    return b"%d\n%d\n%b" % (len(epochs), crc32(lines) & _CRC_BITS, lines)


def decode_checkpoint(content: bytes) -> EpochList:
    """Decode the text of the file; the writers of the epochs are unknown.

    Raises:
        CorruptEpochs: the text holds no list of epochs.
    """
    try:
        count, crc, *lines = content.decode().splitlines()
        entries = tuple(_epoch_of(line) for line in lines)
        expected = int_of(crc)
        if len(entries) != int_of(count):
            raise CorruptEpochs(f"{len(entries)} of {count} epochs are there")
    except ValueError as error:
        raise CorruptEpochs(f"the text is no list of epochs: {error}") from error
    found = crc32("".join(f"{line}\n" for line in lines).encode()) & _CRC_BITS
    if expected not in (0, found):
        raise CorruptEpochs(f"CRC {expected} expected, {found} found")
    return EpochList(entries[-EPOCHS_MAX:])


def _epoch_of(line: str) -> Epoch:
    number, start = line.split("-")  # so neither can be negative
    return Epoch(int_of(number), long_of(start), UNKNOWN_WRITER, 1)
