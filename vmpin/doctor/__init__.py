"""What is right and wrong on this node for vmpin: facts in, findings out.

Pure: each check judges what was found (facts) and says what it saw and what to do about it. What stays out: finding it
(checkup, and the adapters that it asks), and how it looks on a terminal (cli/doctor).
"""
