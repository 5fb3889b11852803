"""What the watcher shows: the status document, explanations, health, and which pods an argument means.

It reads the node through the read-only view (reconcile.view) and changes nothing."""
