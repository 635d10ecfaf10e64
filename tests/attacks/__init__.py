"""Fault injection: a reader never sees a wrong sample, and a killed writer loses nothing that was committed.

Each attack is a function of a number of rounds. The test suite runs few rounds (``test_attacks.py``), ``make attack``
all of them (``__main__.py``), and prints the counts.
"""
