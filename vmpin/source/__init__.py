"""Where events come from: one module, one source."""
