"""The files of replication beside the store: the node's identity and the epochs of its log."""

from __future__ import annotations

from typing import Any

import attrs

from ...store.json_file import JsonFile
from ...world.disk import Disk
from ...world.randomness import Randomness
from ..envelopes import NODE_SIZE
from ..errors import CorruptEpochs
from .epochs import Epoch, EpochList


def load_node(disk: Disk, root: str, secrets: Randomness) -> bytes:
    """The node's random identity, created at its first start and stored in `haIdentity.json`.

    Raises:
        OSError: the file cannot be read or written.
    """
    file = JsonFile(disk, f"{root}/haIdentity.json")
    kept: Any = file.load()
    try:
        node = bytes.fromhex(kept["node"])
        if len(node) == NODE_SIZE:
            return node
    except (KeyError, TypeError, ValueError):
        pass  # the first start, or an emptied file: the node gets a new identity
    node = secrets.getrandbits(8 * NODE_SIZE).to_bytes(NODE_SIZE, "big")
    file.save({"node": node.hex()})
    return node


@attrs.define(eq=False)
class EpochFile:
    """The epochs of a log, in `haEpochs.json`."""

    disk: Disk
    root: str

    def load(self) -> EpochList:
        """The saved list, or an empty one if there is no file.

        Raises:
            CorruptEpochs: the file holds no list of epochs.
            OSError: the file cannot be read.
        """
        kept = self._file.load()
        if kept is None:
            return EpochList()
        try:
            return EpochList(tuple(_epoch_of(entry) for entry in kept["epochs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEpochs(
                f"{self._file.path} holds no list of epochs ({error!r}): put its backup in its place, or remove it, and let "
                "every slave of this node begin with an empty store"
            ) from error

    def save(self, epochs: EpochList) -> None:
        """Replace the list.

        Raises:
            OSError: the old list is kept.
        Durability: on return the new list survives a power cut.
        """
        self._file.save({"epochs": [attrs.asdict(entry) | {"writer": entry.writer.hex()} for entry in epochs]})

    @property
    def _file(self) -> JsonFile:
        return JsonFile(self.disk, f"{self.root}/haEpochs.json")


def _epoch_of(entry: dict[str, Any]) -> Epoch:
    return Epoch(int(entry["number"]), int(entry["start"]), bytes.fromhex(entry["writer"]), int(entry["replicas"]))
