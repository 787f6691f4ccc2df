"""The decision. Importing the package registers every strategy; a new one is one more line here."""

from weft.plan import chain, jointdnn, whole

__all__ = ["chain", "jointdnn", "whole"]
