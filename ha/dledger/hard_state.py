"""Term and vote of one node, in DLedger's file `currterm` (MemberState.persistTerm).

No answer that rests on a term or a vote may leave before `save` has returned. Java writes a `.tmp` without syncing it, copies
the file to `.bak`, deletes it and renames the `.tmp`: a crash can leave the `.tmp` and the `.bak` alone, which Java then never
looks at. We replace the file atomically and synced, and read whichever of the three is newest.
"""

from __future__ import annotations

import attrs

from ...remoting.java_properties import read_properties, write_properties
from ...world.disk import Disk
from ...world.files import read_file, replace_file
from ..errors import CorruptHardState

FILE_BYTES_MAX = 64 * 1024
_TERM_MAX = (1 << 63) - 1


@attrs.frozen
class TermAndVote:
    """What a node must never forget."""

    term: int = 0
    vote: str = ""
    """Id of the node that got this node's vote in `term`; empty for none."""


def encode_term_and_vote(state: TermAndVote) -> bytes:
    """The text of the file."""
    return write_properties({"voteLeader": state.vote, "currTerm": str(state.term)}).encode()


def decode_term_and_vote(encoded: bytes) -> TermAndVote | None:
    """Read the text of the file; None if it does not say what it must."""
    try:
        entries = read_properties(encoded.decode())
        term = int(entries["currTerm"])
    except (UnicodeDecodeError, KeyError, ValueError):
        return None
    return TermAndVote(term, entries.get("voteLeader", "")) if 0 <= term <= _TERM_MAX else None


@attrs.define(eq=False)
class HardStateFile:
    """The file of one node."""

    disk: Disk
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}/currterm"

    def load(self) -> TermAndVote | None:
        """The newest state that the file, its backup or an unfinished replacement holds; None if there is none of the three.

        Raises:
            CorruptHardState: there are files, and not one of them can be read.
            OSError: the disk refused.
        """
        kept, fresh, backup = (self._read(path) for path in (self.path, f"{self.path}.tmp", f"{self.path}.bak"))
        # An unreadable replacement was never finished, so nothing was answered by it. The backup is older than the file, and
        # only as good as it where a Java node has deleted the file to replace it.
        if isinstance(kept, str) or (kept is None and isinstance(backup, str) and not isinstance(fresh, TermAndVote)):
            raise CorruptHardState(
                f"{kept or backup}: no term can be read, so this node might vote twice in one. Nothing was changed. Put a "
                f"good copy in the place of {self.path}, or move the whole directory {self.directory} away and let the leader "
                "fill this node again"
            )
        candidates = (kept, fresh) if kept is not None else (fresh, backup)
        found = [state for state in candidates if isinstance(state, TermAndVote)]
        # With one term, the file that knows of a vote is the newer one.
        return max(found, key=lambda state: (state.term, bool(state.vote))) if found else None

    def _read(self, path: str) -> TermAndVote | str | None:
        """What a file says: its path if it says nothing, None if there is no such file."""
        if not self.disk.exists(path):
            return None
        return decode_term_and_vote(read_file(self.disk, path)[:FILE_BYTES_MAX]) or path

    def save(self, state: TermAndVote) -> None:
        """Replace the file.

        Raises:
            OSError: the new state may not survive a crash; nothing that rests on it may be answered.
        Durability: on return the new state survives a power cut; a crash before leaves the old or the new one, whole.
        """
        replace_file(self.disk, self.path, encode_term_and_vote(state))
