"""`vmpin top`: what ran in an interval, whose CPUs that was on, and the rows of pods and threads.

interval_sampler reads /proc; the other modules are pure.
"""
