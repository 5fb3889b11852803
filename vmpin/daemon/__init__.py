"""The process that `vmpin watch` starts, and its event loop, in which procevents and guests run, too.

The watcher makes every pass. The other modules are its feeds, hook intake, control socket, recheck schedule, run
directory, and systemd's notifications."""
