"""Planning: make a task, ask strategies, compare their plans.

task.py      a strategy's input: a network, a fleet, a batch
decide.py    one strategy's plan, checked and priced; a plan file simulated
compare.py   several strategies side by side
profiles.py  a network's costs, measured here or derived
features.py  what a run with a strategy can do, and what it refuses

It imports strategies and the packages below them. The run, adapt, the commands and the papers import it.
"""
