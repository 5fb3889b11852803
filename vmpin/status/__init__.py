"""What the watcher shows: the status document, explanations, health, counts, metrics.

It reads the node through the read-only view (reconcile.view) and changes nothing."""
