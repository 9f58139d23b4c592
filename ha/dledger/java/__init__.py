"""The dialect of DLedger 0.3.1.2: requests as JSON, its elections and its replication."""
