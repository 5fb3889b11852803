"""What vmpin puts on a node: the hook's files, the agent's zipapp, and where the wheel's data files are.

What stays out: the command line (cli). Imported by cli and demo.
"""
