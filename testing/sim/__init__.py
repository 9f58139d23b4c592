"""The simulated world: disk, network, clocks, workers and scheduler, all drawn from one seed."""
