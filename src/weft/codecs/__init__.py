"""How values are made smaller on the wire."""
