"""Looks at the node for `vmpin doctor` and `vmpin gather`: asks every adapter, and changes nothing.

What stays out: what is right or wrong about it (doctor), and asking the watcher (cli).
"""
