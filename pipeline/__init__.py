"""Topics as tables and streams of Spark, and the jobs built on them; needs the extra `ledgermq[spark]`."""
