"""Messages, their stored form byte for byte, and the small languages inside them. Pure: no I/O, no clock."""
