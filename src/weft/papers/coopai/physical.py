"""CoopAI's plans on physical links: the simulator's seconds.

    rows = simulate_plans("vgg16", PLANS)

In the simulator a receiver waits for the sender, and the medium carries one message at a time. The paper's
equation (3) gives every device its share of the bandwidth as long as the slowest needs it, and counts no
waiting. So the order of two plans can be the other way round here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.graph.network import Graph
from weft.papers.claims import Claim, Table
from weft.papers.coopai.measured import MBPS, Ask, cell
from weft.papers.coopai.runs import captured
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile

PLANS: tuple[Ask, ...] = (
    ("one device", "coopai", {"devices": "1"}),
    ("SLS", "sls", {}),
    ("SLS, overlapping", "sls", {"overlap": "on"}),
    ("MLS", "coopai", {}),
)
# On the same devices as the paper, whose gateway computes nothing.
PLUS: Ask = ("coopai+", "coopai+", {"gateway": "off"})
WITH_GATEWAY: Ask = ("coopai+, the gateway too", "coopai+", {})
FASTER = 8.0  # percent that coopai+ should save against coopai
BEYOND = 1.0  # a plan must be faster by so many percent to count as faster

IDLE = (
    "Equation (3) charges a round k times the transfers of its slowest device, also while the others are "
    "silent. On one medium a round waits only for what is really sent, which favours SLS's many small "
    "exchanges; and MLS computes the rows along borders twice. Sent by all: {sent}; computed by all: {spent}."
)


@dataclass(frozen=True)
class Simulated:
    """One network: simulated seconds by title of the plan."""

    title: str
    seconds: dict[str, float]
    sent_s: dict[str, float]  # seconds that the medium is occupied
    spent_s: dict[str, float]  # seconds of computing, all devices together

    def idle(self) -> str:
        """Why MLS may be slower than SLS."""
        sent, spent = (
            f"{seconds['SLS']:.2f} s (SLS), {seconds['MLS']:.2f} s (MLS)"
            for seconds in (self.sent_s, self.spent_s)
        )
        return IDLE.format(sent=sent, spent=spent)

    def saved(self, of: str, against: str) -> float:
        """Percent that one plan saves against another."""
        return 100 * (1 - self.seconds[of] / self.seconds[against])


def simulate_plans(title: str, asks: Iterable[Ask]) -> Simulated:
    """Simulated seconds of plans for ten Raspberry Pi 4 behind 100 Mbps."""
    graph: Graph = captured(title.lower())
    fleet = cell()
    profile = derive_profile(graph, fleet)
    seconds, sent, spent = {}, {}, {}
    for row, strategy, options in asks:
        task = make_task(profile, fleet, mode="infer", options=options, graph=graph)
        plan = decide(strategy, task)
        assert plan.predicted is not None
        seconds[row] = plan.predicted.seconds
        sent[row] = sum(plan.predicted.transfer_bytes.values()) * 8 / (MBPS * 1e6)
        spent[row] = sum(plan.predicted.compute_s.values())
    return Simulated(title, seconds, sent, spent)


def physical_table(networks: Sequence[Simulated]) -> Table:
    """Latency on physical links, by strategy and network."""
    rows = tuple(
        (row, *(f"{network.seconds[row]:.3f}" for network in networks))
        for row in networks[0].seconds
    )
    columns = ("plan", *(network.title for network in networks))
    return Table("On physical links: simulated seconds of an answer", columns, rows)


def physical_claims(networks: Sequence[Simulated]) -> list[Claim]:
    """What MLS and `coopai+` save on physical links."""
    claims = []
    for network in networks:
        key, saved = network.title.lower(), network.saved("MLS", "SLS")
        ours = f"{abs(saved):.1f} % {'faster' if saved > 0 else 'slower'}"
        claims.append(
            Claim(f"physical-{key}", f"{network.title}: MLS faster than SLS on physical links",
                  "faster", ours, "", saved > BEYOND, "" if saved > BEYOND else network.idle())
        )  # fmt: skip
        if PLUS[0] in network.seconds:
            plus = round(network.saved(PLUS[0], "MLS"), 2)
            claims.append(
                Claim(f"physical-{key}-plus", f"{network.title}: coopai+ saves against MLS",
                      f"aim: {FASTER:g} %", plus, "%", plus >= FASTER, own=True)
            )  # fmt: skip
    return claims
