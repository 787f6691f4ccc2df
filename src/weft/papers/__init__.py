"""The papers' evaluations beside ours. Importing the package registers them; a new one is one more
line here."""

from weft.papers import coopai, decoupled, edgemove, hiertrain, stitchnet

__all__ = ["coopai", "decoupled", "edgemove", "hiertrain", "stitchnet"]
