"""The dialect of our own nodes: frames, handshake, connections, and the group's records."""
