"""The client library on trio: producers, consumers and the admin client, and blocking versions of them for plain threads."""
