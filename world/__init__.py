"""The outside, behind small interfaces: disk, network, clocks, randomness and worker threads."""
