"""New programs and threads, at the proc connector's events: the feed, the newborn placer, the placement-latency book.

Masks are decided and set as in a pass (placement, reconcile).
"""
