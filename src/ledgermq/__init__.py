"""LedgerMQ: a RocketMQ-compatible message broker in Python on trio."""
