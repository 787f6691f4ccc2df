"""Chaos: many runs in which something goes wrong at random moments, and what came of them.

Read in this order:

fleets.py     a small fleet for a strategy, where the user gives none
scenes.py     what goes wrong in a run: a random script of faults, by a seed
trial.py      one run with a script, in a process of its own
worker.py     the processes that trials run in: a trial that hangs is ended, a killed one is noticed
references.py runs in which nothing goes wrong, kept for later series
chaos.py      trial after trial; a run that lost its coordinator is resumed
report.py     all outcomes in one document
table.py      and in one table

Only `weft.commands` imports it.
"""
