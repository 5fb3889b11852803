"""Annotations of pods that were changed while their containers run (`allocate.live_annotations`)."""
