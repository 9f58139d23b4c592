"""The message store: commit log, consume queues, key index, and how they survive (RocketMQ DefaultMessageStore)."""
