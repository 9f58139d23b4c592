"""Ready-made pipelines: each a function that takes a Spark session, and a command of `ledgermq pipeline`."""
