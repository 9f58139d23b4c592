"""The command `ledgermq`."""
