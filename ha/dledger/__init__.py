"""DLedger mode: a commit log that a Raft group keeps on every node, in the files of DLedger 0.3.1.2."""
