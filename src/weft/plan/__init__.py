"""The decision. Importing the package registers every strategy; a new one is one more line here."""

from weft.plan import (
    chain,
    coopai,
    coopai_plus,
    edgemove,
    edgemove_plus,
    hiertrain,
    hiertrain_plus,
    jalad,
    jointdnn,
    peer_plan,
    stitchnet_strategies,
    whole,
)

__all__ = [
    "chain",
    "coopai",
    "coopai_plus",
    "edgemove",
    "edgemove_plus",
    "hiertrain",
    "hiertrain_plus",
    "jalad",
    "jointdnn",
    "peer_plan",
    "stitchnet_strategies",
    "whole",
]
