"""What is measured on real nodes before a run.

`discover.py` finds the nodes, `survey.py` measures layers, links and messages, and `known.py` keeps the
results for later runs.
"""
