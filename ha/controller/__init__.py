"""The controller: a small Raft group that elects the masters of plain HA groups and keeps for each its replicas in sync."""
