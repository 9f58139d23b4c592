"""The Raft core alone: a memory storage with a disk's habits, a world of faults, checkers, and a model checker."""
