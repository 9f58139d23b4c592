"""The simulated world: disk, network, clocks, workers and scheduler, all random by one seed."""
