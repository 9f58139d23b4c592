"""DLedger mode: a commit log that a Raft group replicates to every node, in the file format of DLedger 0.3.1.2."""
