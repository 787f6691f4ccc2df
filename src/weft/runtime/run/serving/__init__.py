"""A fleet that answers requests until it is closed. Read in this order:

desk.py         requests from any thread wait here; the desk has room for so many
clerk.py        the one thread that takes requests to the run and brings answers back
answering.py    the run of a network that only answers: it grows while it works, and starts again after errors
attendants.py   the adviser: plans for those who are left, and for those who are back
"""
