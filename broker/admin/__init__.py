"""The requests of administrators and their tools: one service per file, each registers its own request codes."""
