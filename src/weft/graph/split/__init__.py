"""Parts of layers: rows, units, classes, and the state that goes with a part."""
