"""Code that runs only in this repository and is not in the wheel: simulators, planted bugs, fuzzers, processes under faults."""
