"""What several strategies need: costs of layers, and plans of whole layers."""
