"""The door: bytes in, bytes out, the switch and the record."""
