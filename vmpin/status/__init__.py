"""What the watcher shows: the status document, explanations, health, counts, metrics.

It reads the node through the read-only view (reconcile.view) and changes nothing. What stays out: sockets and output
(daemon, cli), longer reports (reports). Imported by procevents, reports, doctor, daemon and cli."""
