"""Ready-made pipelines; each is a function with a Spark session as argument, and a command of `ledgermq pipeline`."""
