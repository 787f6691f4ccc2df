"""HierTrain, its baselines JointDNN and JALAD, and hiertrain+: layers and samples over three tiers."""
