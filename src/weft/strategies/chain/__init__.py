"""A layer pipeline over any number of devices."""
