"""What is wrong on a node: the checks turn facts into findings with level, evidence and remedy, and are pure;
`node_facts` reads the facts. And the data for a bug report, in one archive (`gather`).

Lists name what goes into that, not what is left out: no environment of any process, no command line except of managed
VMMs and their helpers (without secrets), no annotation, and of other programs' configurations only the keys that
concern CPUs.
"""
