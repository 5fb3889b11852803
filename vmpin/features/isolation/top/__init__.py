"""`vmpin top`: what ran in an interval, whose CPUs that was on, and the rows of pods, threads and thieves.

interval_sampler reads /proc; the other modules are pure.
"""
