"""Planning: make a task, ask strategies, compare their plans.

task.py      a strategy's input: a network, a fleet, a batch
decide.py    one strategy's plan, checked and priced; a plan file simulated
compare.py   several strategies side by side
advise.py    the best of them, what it gains over one machine; what `auto` takes
one_place.py the whole network on one device: what a split is measured against
exactness.py what a plan computes that one process would not
limit.py     how long a strategy may think
profiles.py  a network's costs, measured here or derived
features.py  what a run with a strategy can do, and what it refuses

It imports strategies and the packages below them. The run, adapt, the commands and the papers import it.
"""
