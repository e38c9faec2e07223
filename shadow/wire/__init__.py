"""Bytes <-> values, written once for the door and for the engine client. Pure: no I/O, no clock."""
