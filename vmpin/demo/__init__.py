"""The demo: a real VM, real containers, the watcher, and masks read from /proc without vmpin's code."""
