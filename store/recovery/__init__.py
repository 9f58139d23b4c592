"""Making what is derived agree with the log after any kind of exit, and the marks that shorten it."""
