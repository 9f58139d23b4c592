"""Classic replication: one master, any number of slaves that follow its log byte for byte."""
