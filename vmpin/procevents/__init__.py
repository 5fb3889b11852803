"""New programs and threads, at the proc connector's events: the feed, the newborn placer, the placement-latency book.

Masks are decided and set as in a pass (placement, reconcile). What stays out: the events' bytes (wire) and the socket
(host). Imported by daemon alone.
"""
