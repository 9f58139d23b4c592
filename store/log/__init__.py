"""The commit log: its interface, the log of one broker on one disk, and logs around others."""
