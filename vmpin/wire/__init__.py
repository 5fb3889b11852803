"""The wire formats of other programs: ttRPC, NRI's multiplexer, the proc connector, NRI's and the Kata agent's
messages.

Pure: bytes in, values out, and back. What stays out: sockets, and what follows from a message (sources, guests, host,
procevents). Imported by those four.
"""
