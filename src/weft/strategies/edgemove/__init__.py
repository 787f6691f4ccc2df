"""EdgeMove, its baselines, and edgemove+: one cut to an edge server, several minibatches in flight."""
