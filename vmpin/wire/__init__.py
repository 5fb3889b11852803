"""Wire formats as codecs: bytes in, messages out, and back. No sockets."""
