"""The process that `vmpin watch` starts, and its event loop, in which procevents and guests run, too.

Here live the watcher, which owns every pass, and what it runs: feeds, hook intake, control socket, recheck
schedule, the run directory and systemd's notifications."""
