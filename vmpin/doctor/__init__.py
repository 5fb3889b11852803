"""The checks of a node: pure, from facts that `collect` gathered, each with a finding and what to do.

What stays out: reading (doctor.collect). Imported by cli.
"""
