"""Masks: the difference between placed and observed, setting it, the original masks, and drift with its causes."""
