"""The verbs that set a node or a guest up: `vmpin install-hook`, `vmpin install-service`, `vmpin guest`."""
