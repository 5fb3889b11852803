"""Annotations of pods that were changed while their containers run (`allocate.live_annotations`).

What stays out: changes by the operator (allocation.live_change). Imported by reconcile and daemon.
"""
