"""Networks decoupled by classes: how their sub-networks are made, calibrated and averaged."""
