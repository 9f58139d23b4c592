"""The clients for asyncio: each runs the trio client in a thread of its own, and tasks wait for it."""
