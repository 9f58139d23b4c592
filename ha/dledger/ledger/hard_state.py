"""The term and vote of one node, in DLedger's file `currterm` (MemberState.persistTerm).

No answer that depends on a term or a vote may be sent before `save` has returned. Java writes a `.tmp` without syncing it,
copies the file to `.bak`, deletes it and renames the `.tmp`: a crash can leave only the `.tmp` and the `.bak`, which Java never
reads. We replace the file atomically and sync it, and read the newest of the three.
"""

from __future__ import annotations

import attrs

from ....remoting.java_properties import read_properties, write_properties
from ....world.disk import Disk
from ....world.files import read_file, replace_file
from ...errors import UNDER_WHICH_NAME, CorruptHardState

FILE_BYTES_MAX = 64 * 1024
"""The most bytes of the file that are read; the rest is ignored."""
_TERM_MAX = (1 << 63) - 1


@attrs.frozen
class TermAndVote:
    """The state that a node must never lose."""

    term: int = 0
    vote: str = ""
    """The id of the node that this node voted for in `term`; empty if it has not voted."""


def encode_term_and_vote(state: TermAndVote) -> bytes:
    """Encode the text of the file."""
    return write_properties({"voteLeader": state.vote, "currTerm": str(state.term)}).encode()


def decode_term_and_vote(encoded: bytes) -> TermAndVote | None:
    """Decode the text of the file; None if it has no valid term."""
    try:
        entries = read_properties(encoded.decode())
        term = int(entries["currTerm"])
    except (UnicodeDecodeError, KeyError, ValueError):
        return None
    return TermAndVote(term, entries.get("voteLeader", "")) if 0 <= term <= _TERM_MAX else None


@attrs.define(eq=False)
class HardStateFile:
    """The hard-state file of one node."""

    disk: Disk
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}/currterm"

    def load(self) -> TermAndVote | None:
        """Return the newest state in the file, its backup or an unfinished replacement; None if none of the three exists.

        Raises:
            CorruptHardState: the file is unreadable, or it is missing and only an unreadable backup is left.
            OSError: a file could not be accessed.
        """
        kept, fresh, backup = (self._read(path) for path in (self.path, f"{self.path}.tmp", f"{self.path}.bak"))
        # An unreadable replacement was never finished, so no answer depended on it. The backup is older than the file, and
        # equals it only if a Java node has deleted the file to replace it.
        if isinstance(kept, str) or (kept is None and isinstance(backup, str) and not isinstance(fresh, TermAndVote)):
            raise CorruptHardState(
                f"{kept or backup}: no term can be read, so this node might vote twice in one. Nothing was changed. Put a "
                f"good copy in the place of {self.path}, or move the whole directory {self.directory} away and let the leader "
                f"fill this node again{UNDER_WHICH_NAME}"
            )
        candidates = (kept, fresh) if kept is not None else (fresh, backup)
        found = [state for state in candidates if isinstance(state, TermAndVote)]
        # If the terms are equal, the file with a vote is the newer one.
        return max(found, key=lambda state: (state.term, bool(state.vote))) if found else None

    def _read(self, path: str) -> TermAndVote | str | None:
        """Return the state in a file, its path if it is unreadable, or None if it does not exist."""
        if not self.disk.exists(path):
            return None
        return decode_term_and_vote(read_file(self.disk, path)[:FILE_BYTES_MAX]) or path

    def save(self, state: TermAndVote) -> None:
        """Replace the file.

        Raises:
            OSError: the new state may not survive a crash; no answer may depend on it.
        Durability: on return the new state survives a power cut; an earlier crash leaves the old or the new one, complete.
        """
        replace_file(self.disk, self.path, encode_term_and_vote(state))
