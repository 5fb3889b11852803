"""Wire formats of other programs: ttRPC, NRI's multiplexer and messages, the Kata agent's, the proc connector.

Pure: bytes in, values out, and back."""
