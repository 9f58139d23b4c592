"""What clients and administrators do on the floor of whole nodes, one kind of work in each file."""
