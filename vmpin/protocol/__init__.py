"""The messages between the watcher on the host and vmpin's agent in a guest: bytes in, messages out.

Pure, standard library, Python 3.9: the guest's agent carries it."""
