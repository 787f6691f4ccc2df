"""The decision. Importing the package registers every strategy; a new one is one more line here."""

<<<<<<< HEAD
from weft.plan import (
    chain,
    coopai,
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
=======
from weft.plan import chain, coopai, coopai_plus, hiertrain, hiertrain_plus, jalad, jointdnn, whole
>>>>>>> coopai-plan

__all__ = [
    "chain",
    "coopai",
<<<<<<< HEAD
    "edgemove",
    "edgemove_plus",
=======
    "coopai_plus",
>>>>>>> coopai-plan
    "hiertrain",
    "hiertrain_plus",
    "jalad",
    "jointdnn",
<<<<<<< HEAD
    "peer_plan",
    "stitchnet_strategies",
=======
>>>>>>> coopai-plan
    "whole",
]
