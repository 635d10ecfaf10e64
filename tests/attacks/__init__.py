"""Attacks on the promise: a reader never sees a wrong sample, a writer that dies loses nothing that was committed.

Each is a function of a number of rounds. The test suite runs a few (``test_attacks.py``), ``make attack`` all of them
(``__main__.py``), which prints what was counted.
"""
