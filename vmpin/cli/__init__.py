"""The command line: a module for each verb, with its parser and a `run` that returns an exit code.

Only `main` prints errors and exits.
"""
