"""The id that the controller has given a broker, in RocketMQ's files `brokerIdentity` and `brokerIdentity-temp`.

Each is one line with `#` between its fields. The temporary file has a fourth one, the check code by which the controller tells
a broker that repeats its application from another that applies for the same id. A file of our own, `crashUnreported`, says that
the broker has crashed and has not registered since.
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from ...message.numbers import LONG_MAX, long_of
from ...world.disk import Disk
from ...world.files import read_file, replace_file
from ..errors import WrongHaSetting

FILE_BYTES_MAX = 4096
"""The most bytes of a file that are read."""


@attrs.frozen
class Identity:
    """Who a broker is for the controller."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str = ""
    """Empty once the controller has confirmed the id."""

    def encoded(self) -> bytes:
        """The line of the file."""
        fields = [self.cluster, self.broker_name, str(self.broker_id), *filter(None, [self.check_code])]
        return "#".join(fields).encode()


def decode_identity(line: bytes, *, temporary: bool) -> Identity | None:
    """Decode the line of a file; None if it is not one."""
    try:
        cluster, broker_name, broker_id, *rest = line.decode().strip().split("#")
        number = long_of(broker_id)
    except (UnicodeDecodeError, ValueError):
        return None
    if len(rest) != temporary or not 0 < number <= LONG_MAX or not cluster or not broker_name:
        return None
    return Identity(cluster, broker_name, number, rest[0] if temporary else "")


@attrs.define(eq=False)
class IdentityFiles:
    """The files of one broker. All calls block."""

    disk: Disk
    root: str

    @property
    def path(self) -> str:
        return f"{self.root}/brokerIdentity"

    @property
    def _temporary_path(self) -> str:
        return f"{self.path}-temp"

    def load(self, cluster: str, broker_name: str) -> Identity | None:
        """Return the confirmed identity, or else the one that is being applied for; None if there is none.

        Raises:
            WrongHaSetting: the file is another broker's, or damaged. Nothing was changed.
            OSError: a file cannot be read.
        """
        for path, temporary in ((self.path, False), (self._temporary_path, True)):
            if not self.disk.exists(path):
                continue
            identity = decode_identity(read_file(self.disk, path)[:FILE_BYTES_MAX], temporary=temporary)
            if identity is None:
                if temporary:
                    continue  # nothing was confirmed yet, so a new application loses nothing
                raise WrongHaSetting(
                    f"{path} is damaged: it should be CLUSTER#NAME#ID. Restore it from a backup, or remove it, and the broker "
                    "gets a new id; then `ledgermq controller forget` removes the old one"
                )
            if (identity.cluster, identity.broker_name) != (cluster, broker_name):
                raise WrongHaSetting(
                    f"{path} belongs to {identity.cluster}/{identity.broker_name}, and the configuration says "
                    f"{cluster}/{broker_name}: set brokerClusterName and brokerName as they were, or use another store"
                )
            return identity
        return None

    def save(self, identity: Identity) -> None:
        """Write the file of an application or, if there is no check code, of a confirmed identity in place of both.

        Raises:
            OSError: the old files are kept.
        Durability: on return it survives a power cut.
        """
        replace_file(self.disk, self._temporary_path if identity.check_code else self.path, identity.encoded())
        if not identity.check_code:
            self.drop_application()

    def drop_application(self) -> None:
        """Remove the temporary file, because another broker has got the id.

        Raises:
            OSError: the file is kept.
        """
        if self.disk.exists(self._temporary_path):
            self.disk.remove(self._temporary_path)
            self.disk.sync_directory(self.root)

    @property
    def _crash_path(self) -> str:
        return f"{self.root}/crashUnreported"

    def note_crash(self) -> bool:
        """Note whether the last run has crashed, and return whether the controller does not know of that or an earlier crash.

        The store's abort file goes when this run stops in order, which may be before it has registered.
        """
        if self.disk.exists(f"{self.root}/abort"):
            with suppress(OSError):  # it exists already, or the disk is full, and the broker must start so that it can be read
                self.disk.open(self._crash_path, create_size=0).close()
                self.disk.sync_directory(self.root)
            return True
        return self.disk.exists(self._crash_path)

    def forget_crash(self) -> None:
        """Note that the controller knows of the crash.

        Raises:
            OSError: the file is kept.
        """
        if self.disk.exists(self._crash_path):
            self.disk.remove(self._crash_path)
