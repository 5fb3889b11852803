"""Places new programs and threads on events of the proc connector: the event feed, the newborn placer, and the
placement-latency book. Masks are decided and set as in a pass (placement, reconcile).
"""
