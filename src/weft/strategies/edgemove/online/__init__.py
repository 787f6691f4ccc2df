"""What EdgeMove and its baselines decide during a run, and the simulated city in which they are compared."""
