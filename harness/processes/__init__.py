"""Real broker processes under kills, broken networks and malformed frames."""
