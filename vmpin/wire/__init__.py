"""Wire formats of other programs: ttRPC, NRI's multiplexer and messages, the Kata agent's, the proc connector.

Pure: bytes in, values out, and back. What stays out: sockets, and what follows from a message (sources, guests, host,
procevents). Imported by host and everything above it."""
