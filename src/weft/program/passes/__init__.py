"""Changes to a program: several minibatches in flight, and devices that stand by."""
