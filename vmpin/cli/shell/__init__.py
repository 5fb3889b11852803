"""The command line as a thing of its own: its grammar, help and repetition.

What stays out: the verbs themselves, and their parsers, from which all of this is made. Imported by the rest of cli.
"""
