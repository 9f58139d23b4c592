"""Tests of the Raft core alone: a memory storage that behaves like a disk, simulated faults, checkers, a model checker."""
