"""The modes of a broker: how its log and tables are replicated, and who gives it its role."""
