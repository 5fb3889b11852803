"""Collects the facts about a node that the doctor checks and the bug report contains. Reads only.

What stays out: evaluating them (doctor), and requests to the watcher (cli). Imported by cli alone."""
