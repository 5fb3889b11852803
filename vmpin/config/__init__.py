"""The configuration: its settings, their parsers and loading them in layers; and scenario files.

What stays out: acting on the values. Imports domain, placement and allocation (their rules), and host (reading a
file). Imported by sources, reconcile and everything above them."""
