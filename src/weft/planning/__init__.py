"""Planning: make a task, ask strategies, compare what they answer.

task.py      what a strategy is asked: a network, a fleet, a batch
decide.py    one strategy's plan, checked and priced; a plan file played through
compare.py   several strategies side by side
profiles.py  what a network costs, measured here or derived
features.py  what a run with a strategy can do, and what it refuses

It imports strategies and what lies under them. The run, adapt, the commands and the papers import it.
"""
