"""The name server: which brokers live, and which of them serve a topic."""
