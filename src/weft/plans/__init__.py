"""The decision as data: plans, profiles, tasks, and the registry of strategies."""
