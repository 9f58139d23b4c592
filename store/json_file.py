"""One JSON file of the `config` directory, replaced as a whole (RocketMQ ConfigManager).

At every moment, a power cut included, the main file or its `.bak` holds a whole earlier value. Both are read as leniently
as fastjson writes: integer keys may have no quotes, and become strings.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import attrs

from ..message.errors import JsonError
from ..message.json import dumps, loads
from ..world.disk import Disk
from ..world.events import get_logger

log = get_logger(__name__)


@attrs.define(eq=False)
class JsonFile:
    """The file of one value."""

    disk: Disk
    path: str
    _sound: tuple[int, int] | None = None
    """The size and the checksum of the content that was last read or written as JSON. To read a table of many megabytes again
    would hold up the event loop, even in another thread, because both run Python."""

    @property
    def backup_path(self) -> str:
        return f"{self.path}.bak"

    def load(self) -> Any | None:
        """The value of the file, or of its `.bak` when the file is missing, empty or broken; None if neither can be read.

        Raises:
            OSError: a file exists and cannot be read.
        """
        value = self._read(self.path)
        if value is None:
            value = self._read(self.backup_path)
            if value is not None:
                log.warning("config_read_from_backup", path=self.path, backup_path=self.backup_path)
        return value

    @property
    def exists(self) -> bool:
        """Whether there is a file: if so, and nothing could be loaded, it is broken, since none is ever written empty."""
        return self.disk.exists(self.path) or self.disk.exists(self.backup_path)

    def _content(self, path: str) -> bytes:
        file = self.disk.open(path)
        try:
            return file.read(0, file.size)
        finally:
            file.close()

    def _read(self, path: str) -> Any | None:
        if not self.disk.exists(path):
            return None
        content = self._content(path)
        if _is_blank(content):
            log.warning("config_unreadable", path=path, error="empty")
            return None
        try:
            value = loads(content)
        except JsonError as error:
            log.warning("config_unreadable", path=path, error=str(error))
            return None
        self._sound = _sum_of(content)
        return value

    def save(self, value: Any) -> None:
        """Write `value` to the file; its previous content becomes the `.bak`.

        Raises:
            OSError: the file or its `.bak` still holds the old value.
        Durability: on return the new value survives a power cut.
        """
        directory = self.path.rpartition("/")[0] or "."
        self.disk.make_directories(directory)
        new_path = f"{self.path}.tmp"
        if self.disk.exists(new_path):
            self.disk.remove(new_path)
        content = dumps(value)
        file = self.disk.open(new_path, create_size=len(content))
        try:
            file.write(content, 0)
            file.sync()
        finally:
            file.close()
        # Only a main file that can be read may become the backup: a broken one must not replace the last good value.
        if self._is_sound():
            self.disk.replace(self.path, self.backup_path)
        self.disk.replace(new_path, self.path)
        self._sound = _sum_of(content)
        self.disk.sync_directory(directory)

    def _is_sound(self) -> bool:
        """Whether the main file exists and can be read."""
        if not self.disk.exists(self.path):
            return False
        return self._sound == _sum_of(self._content(self.path)) or self._read(self.path) is not None


def _sum_of(content: bytes) -> tuple[int, int]:
    return len(content), crc32(content)


def _is_blank(content: bytes) -> bool:
    return not content.strip(b"\0 \t\r\n")
