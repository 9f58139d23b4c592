"""The command line: the command `ledgermq` and its subcommands."""
