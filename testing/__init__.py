"""A simulated world with faults, checkers of what must hold in it, and brokers inside other people's tests."""
