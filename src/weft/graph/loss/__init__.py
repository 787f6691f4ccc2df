"""How a loss adds up over pieces of a minibatch: read from its graph (`totals.py`), measured (`probe.py`)."""
