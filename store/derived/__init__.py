"""What is derived from the log: consume queues, the key index, and what events change."""
