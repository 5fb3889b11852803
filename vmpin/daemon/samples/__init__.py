"""The watcher's samples: the task that takes them, and what it answers of isolation."""
