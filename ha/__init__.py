"""The replication of a broker's log to other nodes: classic master and slaves (RocketMQ HAService), and DLedger groups."""
