"""The tables of a broker: what they hold, how an event of the log changes them, and their files."""
