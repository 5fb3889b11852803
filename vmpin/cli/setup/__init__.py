"""The verbs that set a node or a guest up: `vmpin install-hook`, `vmpin install-service`, `vmpin guest`.

What stays out: the files that they write (install). Imported by cli.main alone."""
