"""The broker: request handlers and tables over the store."""
