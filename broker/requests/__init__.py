"""The requests of clients, and of slaves: one module for each kind, from the frame to the answer."""
