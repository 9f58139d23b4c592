"""How a broker's log gets onto other nodes: classic master and slaves (RocketMQ HAService)."""
