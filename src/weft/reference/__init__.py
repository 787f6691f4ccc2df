"""The mathematics of each system in one process: what a real run must equal."""
