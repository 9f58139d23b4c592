"""A simulated world with faults, checkers of the properties of a run, and brokers embedded in the tests of applications."""
