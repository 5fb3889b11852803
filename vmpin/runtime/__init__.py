"""What the container runtimes and Kata leave on disk and say to hooks."""
