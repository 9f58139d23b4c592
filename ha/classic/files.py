"""The files of replication beside the store: the node's identity and the epochs of its log."""

from __future__ import annotations

from typing import Any

import attrs

from ...store.json_file import JsonFile
from ...world.disk import Disk
from ...world.events import get_logger
from ...world.files import read_file, replace_file
from ...world.randomness import Randomness
from ..envelopes import NODE_SIZE
from ..errors import CorruptEpochs
from .epoch_checkpoint import decode_checkpoint, encode_checkpoint
from .epochs import Epoch, EpochList

log = get_logger(__name__)


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
    """The epochs of a log, in `haEpochs.json` and, in RocketMQ's controller mode, in its `epochFileCheckpoint` too.

    RocketMQ's file is replaced first. If the two differ, that one is newer, or one of RocketMQ's brokers has written it since,
    and ours only adds the writers of the epochs that both have.
    """

    disk: Disk
    root: str
    rocketmq: bool = False
    """Whether RocketMQ's file is written even if there is none yet."""

    def load(self) -> EpochList:
        """The saved list, or an empty one if there is no file.

        Raises:
            CorruptEpochs: a file holds no list of epochs.
            OSError: a file cannot be read.
        """
        own, theirs = self._load_own(), self._load_rocketmqs()
        return own if theirs is None else theirs.with_writers_of(own)

    def _load_own(self) -> EpochList:
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

    def _load_rocketmqs(self) -> EpochList | None:
        """The list of RocketMQ's file, or of its backup if the file is damaged; None if there is no file."""
        path = self._rocketmq_path
        if not self.disk.exists(path):
            return None
        try:
            return self._read_rocketmqs(path)
        except CorruptEpochs as error:
            if not self.disk.exists(f"{path}.bak"):
                raise
            log.warning("config_unreadable", path=path, error=str(error))
        return self._read_rocketmqs(f"{path}.bak")

    def _read_rocketmqs(self, path: str) -> EpochList:
        try:
            return decode_checkpoint(read_file(self.disk, path))
        except CorruptEpochs as error:
            raise CorruptEpochs(
                f"{path} holds no list of epochs ({error}): put a good copy in its place, or remove it"
            ) from error

    def save(self, epochs: EpochList) -> None:
        """Replace the list.

        Raises:
            OSError: the old list is kept, or RocketMQ's file has the new one already.
        Durability: on return the new list survives a power cut.
        """
        if self.rocketmq or self.disk.exists(self._rocketmq_path):
            # An empty list is written twice: in place of one RocketMQ reads the backup, which must then be empty too.
            for _ in range(1 if len(epochs) else 2):
                replace_file(self.disk, self._rocketmq_path, encode_checkpoint(epochs))
        self._file.save({"epochs": [attrs.asdict(entry) | {"writer": entry.writer.hex()} for entry in epochs]})

    @property
    def _file(self) -> JsonFile:
        return JsonFile(self.disk, f"{self.root}/haEpochs.json")

    @property
    def _rocketmq_path(self) -> str:
        return f"{self.root}/epochFileCheckpoint"


def _epoch_of(entry: dict[str, Any]) -> Epoch:
    return Epoch(int(entry["number"]), int(entry["start"]), bytes.fromhex(entry["writer"]), int(entry["replicas"]))
