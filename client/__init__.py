"""The client library on trio: producer, consumers, admin, and the same from plain threads."""
