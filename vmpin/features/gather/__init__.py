"""The data for a bug report in one archive: its pieces, their limits, and what must not leave the node.

Lists name what goes in, not what is left out: no environment of any process, no command line except of managed VMMs
and their helpers (without secrets), no annotation, and of other programs' configurations only the keys that concern
CPUs.
"""
