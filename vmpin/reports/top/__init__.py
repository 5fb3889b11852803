"""`vmpin top`: what ran in an interval, whose CPUs that was on, and the rows of pods, threads and thieves.

interval_sampler reads /proc; the other modules are pure. What stays out: the terminal and the watcher (cli.top).
Imported by cli.top.
"""
