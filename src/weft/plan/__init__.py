"""The decision. Importing the package registers every strategy; a new one is one more line here."""

from weft.plan import chain, coopai, coopai_plus, hiertrain, hiertrain_plus, jalad, jointdnn, whole

__all__ = [
    "chain",
    "coopai",
    "coopai_plus",
    "hiertrain",
    "hiertrain_plus",
    "jalad",
    "jointdnn",
    "whole",
]
