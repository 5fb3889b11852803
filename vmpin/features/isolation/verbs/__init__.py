"""The verbs of isolation."""
