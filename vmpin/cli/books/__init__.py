"""Verbs about what the watcher has kept over time: `vmpin isolation`.

What stays out: keeping it (reports, daemon). Imported by cli.main alone."""
