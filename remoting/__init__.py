"""RocketMQ remoting: frames, commands and headers as a pure protocol, with trio and plain-socket shells around it."""
