"""Decoupled training, FedAvg, and decoupled+: classes over peers without a server."""
