"""The papers' evaluations beside ours. Importing the package registers them; a new one is one more
line here."""

from weft.papers import edgemove, hiertrain

__all__ = ["edgemove", "hiertrain"]
