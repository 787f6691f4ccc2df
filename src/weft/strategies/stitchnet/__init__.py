"""StitchNet, its baselines, and stitchnet+: neurons over a swarm on lossy radio."""
