"""The command line: one function a verb, each returning an exit code."""
