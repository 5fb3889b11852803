"""Masks: the difference between placed and observed, setting it, the original masks, and drift with its causes.

What stays out: deciding masks (placement) and when (reconcile). Imported by reconcile and everything above it.
"""
