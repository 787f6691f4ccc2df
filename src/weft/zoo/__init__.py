"""The papers' networks, and small ones for demonstrations, by name."""

from weft.zoo.models import Model, build, get, names

__all__ = ["Model", "build", "get", "names"]
