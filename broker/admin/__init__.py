"""What administrators and their tools ask of a broker: one service per file, each registers its own request codes."""
