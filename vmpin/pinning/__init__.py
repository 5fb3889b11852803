"""Masks: the difference between placed and observed, setting it, the masks from before, and drift with its causes.

What stays out: deciding masks (placement) and when (reconcile). Imported by reconcile and everything above it.
"""
