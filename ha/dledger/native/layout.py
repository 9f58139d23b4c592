"""The bytes on the Raft port in the native dialect: a handshake, then frames.

The handshake is that of `haProtocol = ledgermq`: both sides prove that they know the secret, with a nonce from each side.
Every frame has a checksum. Every length is compared with its bound before it is used.
"""

from __future__ import annotations

from ....message.fields import Field, Layout
from ...envelopes import MAC_SIZE
from ..ledger.layout import ENTRY_SIZE_MAX

TAG = b"\x89LMQRF\r\x01"
"""The first bytes that each side sends; the last byte is the version. A remoting peer reads them as a frame of 2.3 GB."""
NAME_BYTES_MAX = 255
"""The most bytes of a group's name, a node's id or an address; a hello with a longer one is refused."""
HANDSHAKE_PART_MAX = 4096
"""The most bytes that may follow an envelope; a larger size ends the connection."""

HELLO = Layout(
    "Raft hello, dialler to listener; then group, own id, listener's id and the dialler's address for clients",
    (
        Field("nonce", "32s", "the listener's MAC must cover it"),
        Field("node", "16s", "random, kept with the store: two nodes with one id are told apart by it"),
        Field("lane", "i", "0 = votes, heartbeats and answers; 1 = entries"),
        Field("data_file_size", "q", "all nodes of a group cut their data files alike"),
        Field("begin_position", "q", "where entry 0 lies; -1 = there is none yet, -2 = it has expired"),
        Field("older_end", "q", "behind the last record of the classic log that the ledger continues; -1 = it has none"),
        Field(
            "older_crc",
            "I",
            "CRC-32 of the last bytes of that log; without one, of the body of entry 0 once that is committed, else 0",
        ),
        Field("group_size", "h", "bytes of the group's name"),
        Field("from_size", "h", "bytes of the dialler's id"),
        Field("to_size", "h", "bytes of the id that the dialler expects the listener to have"),
        Field("serves_size", "h", "bytes of the address where the dialler's broker serves clients"),
    ),
)
WELCOME = Layout("Raft welcome, listener to dialler", (Field("node", "16s", "random, kept with the listener's store"),))

IDENTITY = Layout(
    "identity, after a hello and a welcome if the challenge shows that the listener knows it; behind that of a hello, if the"
    " challenge shows that too, the address of the dialler's Raft port",
    (
        Field(
            "group",
            "16s",
            "random, in the group's log: two groups of one name and secret are told apart by it; 0 = not known yet",
        ),
        Field("start", "16s", "random, of this start: a copy of the store that runs elsewhere is told apart by it"),
    ),
)
KNOWS_IDENTITY = b"identity"
"""The last bytes of a challenge whose sender knows the identity; before, these were random too, and a hello had no identity."""
KNOWS_ADDRESS = b"address+" + KNOWS_IDENTITY
"""The last bytes of a challenge whose sender also takes the address behind the identity in a hello."""

LANE_CONTROL, LANE_ENTRIES = 0, 1

FRAME = Layout(
    "frame head",
    (
        Field("size", "i", "bytes that follow this head"),
        Field("kind", "i", "which message it is"),
        Field("crc", "I", "CRC-32 of what follows, then of the two fields before"),
    ),
)
CONTROL_FRAME_MAX = 4096
"""The most bytes of a frame without entries; a larger size ends the connection."""
ENTRIES_FRAME_MAX = 2 * ENTRY_SIZE_MAX
"""The most bytes of a frame with entries, a batch or one larger entry; a larger size ends the connection."""

_TERM = Field("term", "q", "the sender's current term")

PRE_VOTE_REQUEST = Layout(
    "pre-vote request",
    (
        Field("term", "q", "the term that the sender would campaign in"),
        Field("last_index", "q", "last entry of its log"),
        Field("last_term", "q", "and its term"),
    ),
)
PRE_VOTE_RESPONSE = Layout(
    "pre-vote response",
    (Field("term", "q", "the requested term if granted, else the voter's"), Field("granted", "?", "whether it would vote so")),
)
VOTE_REQUEST = Layout(
    "vote request",
    (
        _TERM,
        Field("last_index", "q", "last entry of the candidate's log"),
        Field("last_term", "q", "and its term"),
        Field("transfer", "?", "the leader itself asked for this election"),
    ),
)
VOTE_RESPONSE = Layout("vote response", (_TERM, Field("granted", "?", "whether the vote was given")))
APPEND = Layout(
    "append; then entries as they lie in the leader's file",
    (
        _TERM,
        Field("prev_index", "q", "the entry before the first one sent"),
        Field("prev_term", "q", "and its term, which the follower's must equal"),
        Field("commit_index", "q", "what the leader has committed"),
        Field("position", "q", "place of the first entry in the data files"),
    ),
)
APPEND_RESPONSE = Layout(
    "append response",
    (
        _TERM,
        Field("match_index", "q", "entries up to here are the leader's and on the follower's medium"),
        Field("received_index", "q", "entries up to here are the leader's"),
        Field("rejected", "?", "the entry before the first one sent is not the leader's"),
        Field("prev_index", "q", "of the rejected append"),
        Field("hint_index", "q", "the largest index at which the logs may agree"),
        Field("hint_term", "q", "the follower's term there"),
    ),
)
HEARTBEAT = Layout(
    "heartbeat",
    (
        _TERM,
        Field("commit_index", "q", "what the leader has committed"),
        Field("round", "q", "the answer repeats it"),
    ),
)
HEARTBEAT_RESPONSE = Layout(
    "heartbeat response",
    (
        _TERM,
        Field("round", "q", "of the heartbeat"),
        Field("durable_index", "q", "how far the follower's log is on its medium"),
    ),
)
INSTALL_SNAPSHOT = Layout(
    "install snapshot: begin anew; then the body of the configuration entry in force there, if there is one",
    (
        _TERM,
        Field("last_index", "q", "the last entry that the leader no longer has"),
        Field("last_term", "q", "and its term"),
        Field("position", "q", "where the next one begins in the data files"),
        Field("configuration_index", "q", "index of the configuration's entry"),
    ),
)
STALE_TERM = Layout("stale term", (Field("term", "q", "the current term, which the answered message did not have"),))
TERM_QUERY = Layout(
    "term query of a node that has lost its disk",
    (
        _TERM,
        Field("context", "q", "the answer repeats it"),
        Field("durable_index", "q", "how far the sender's log is on its medium"),
    ),
)
TERM_ANSWER = Layout("term answer", (_TERM, Field("context", "q", "of the query")))
REGRESSED = Layout("report to a follower that it has less than it acknowledged", (_TERM,))
TIMEOUT_NOW = Layout("timeout now", (_TERM,))
READ_INDEX_REQUEST = Layout("read index request", (_TERM, Field("context", "q", "the answer repeats it")))
READ_INDEX_RESPONSE = Layout(
    "read index response",
    (
        _TERM,
        Field("context", "q", "of the request"),
        Field("known", "?", "whether the leader could confirm itself"),
        Field("index", "q", "up to where the log must be applied before the read"),
    ),
)
_INDEX = Field("index", "q", "of the entry")
ENTRY_DAMAGED = Layout("report to the leader of an entry that was damaged when it was sent", (_TERM, _INDEX))
ENTRY_REQUEST = Layout("request for a sound copy of an entry", (_TERM, _INDEX))
ENTRY_COPY = Layout("sound copy; then the entry", (_TERM, _INDEX))

assert FRAME.size == 12
assert HELLO.size + IDENTITY.size + 4 * NAME_BYTES_MAX + MAC_SIZE <= HANDSHAKE_PART_MAX
