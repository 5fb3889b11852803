"""Collects the facts about a node that the doctor checks and the bug report contains. Reads only."""
