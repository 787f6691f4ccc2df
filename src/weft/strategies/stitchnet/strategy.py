"""Registers StitchNet's strategies by name.

weft plan mlp --fleet examples/fleets/swarm.toml --strategy stitchnet --batch 100 --set probes=50
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.plans.protocols import CLONE, Decide
from weft.plans.strategy import Refusals, strategy
from weft.strategies.stitchnet import mapped as stitchnet

RUN = {
    "slot_ms": "milliseconds of a time slot; without it losses are told at once and nobody waits",
    "every": "minibatches between two records of all weights, from which lost units are cloned",
}
REFUSES: Refusals = {
    "adapt": "a swarm is spread anew when a device is lost, and stays as it is while all are there",
    "comes back": "the units of a lost device have gone to others, and stay there",
}


def _register(name: str, summary: str, decide: Decide, options: Mapping[str, str]) -> None:
    strategy(
        name,
        summary,
        options={**options, **RUN},
        replan=False,
        recovery=CLONE,
        needs=frozenset({"graph", "links"}),
        exact=False,
        refuses=REFUSES,
    )(decide)


_register(
    "stitchnet",
    "units over a swarm on lossy radio: well-connected workers in every layer (Mix-Mapped)",
    stitchnet.stitchnet,
    {**stitchnet.OPTIONS, **stitchnet.MAPPING},
)
_register(
    "stitchnet+",
    "units and packets over a swarm by the weight that is expected to be delivered",
    stitchnet.stitchnet_plus,
    stitchnet.PLUS_OPTIONS,
)
_register(
    "vertical",
    "units over a swarm, layer by layer: few workers share a layer",
    stitchnet.vertical,
    stitchnet.OPTIONS,
)
_register(
    "horizontal",
    "units over a swarm: every worker has a share of every layer",
    stitchnet.horizontal,
    stitchnet.OPTIONS,
)
_register(
    "random-units",
    "units over a swarm, drawn from all layers",
    stitchnet.random_units,
    stitchnet.OPTIONS,
)
_register(
    "average-layers",
    "units over a swarm: two or three layers for every worker, without looking at its links",
    stitchnet.average_layers,
    stitchnet.OPTIONS,
)
