"""The Raft core: consensus as a pure function of ticks, messages and proposals, usable for any replicated state machine."""
