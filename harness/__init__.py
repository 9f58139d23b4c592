"""What only this repository runs, outside the wheel: simulated floors, planted bugs, fuzzers, real processes under faults."""
