"""The paper's experiments and claims; paper.py is the entry."""
