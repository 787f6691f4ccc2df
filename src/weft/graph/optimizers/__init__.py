"""Optimizers and schedules as names and numbers. `user_*.py` make such records from a user's objects."""
