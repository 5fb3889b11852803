"""The command line: a module for each verb, with its parser and a `run` that returns an exit code.

Only `main` prints errors and exits. What stays out: what a verb shows or does, which is in the packages
below. Imported by no package.
"""
