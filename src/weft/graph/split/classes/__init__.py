"""A network decoupled by classes: its sub-networks, how they are made, calibrated and averaged."""
