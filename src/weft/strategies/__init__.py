"""What each system decides. Importing the package registers every strategy that comes with Weft.

A strategy is one file or one folder here; a folder's `strategy.py` registers the system by its paper's
name, `plus.py` ours. No strategy imports another's folder: what several need stands in `common/`.
A new strategy is one more line below. A strategy of your own needs no line: docs/extend.md.
"""

from weft.strategies import whole
from weft.strategies.chain import strategy as chain
from weft.strategies.coopai import plus as coopai_plus
from weft.strategies.coopai import strategy as coopai
from weft.strategies.decoupled import strategy as decoupled
from weft.strategies.edgemove import plus as edgemove_plus
from weft.strategies.edgemove import strategy as edgemove
from weft.strategies.hiertrain import jalad, jointdnn
from weft.strategies.hiertrain import plus as hiertrain_plus
from weft.strategies.hiertrain import strategy as hiertrain
from weft.strategies.stitchnet import strategy as stitchnet

__all__ = [
    "chain",
    "coopai",
    "coopai_plus",
    "decoupled",
    "edgemove",
    "edgemove_plus",
    "hiertrain",
    "hiertrain_plus",
    "jalad",
    "jointdnn",
    "stitchnet",
    "whole",
]
