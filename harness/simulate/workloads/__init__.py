"""What clients and administrators do in the simulators of whole nodes, one workload in each file."""
