"""Codecs and relays: what crosses the links is what was planned, and arrives whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.codecs.int8 import PLANNED_HEADER_BYTES
from weft.codecs.registry import CODECS
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.program.instructions import Send
from weft.program.lower.lower import lower

Subject = Any
RunPlan = Callable[..., Any]
STEPS = 6


def planned(plan: Plan) -> Counter[str]:
    """Bytes per step by message, as the program says."""
    found: Counter[str] = Counter()
    for code in lower(plan).code.values():
        for i in code:
            if isinstance(i, Send):
                found[f"{i.tensor.kind}{i.tensor.at}.{i.tensor.micro}>{i.dest}"] += i.bytes
    return found


def measured(ran: Any, channels: set[str] | None = None) -> list[Counter[str]]:
    """The same from the timeline's transfers, one count per step."""
    found: list[Counter[str]] = [Counter() for _ in range(STEPS)]
    for span in ran.timeline.spans:
        if span.what == "transfer" and (channels is None or span.where in channels):
            what, _, dest = span.label.partition(">")
            found[span.step][f"{what}.{span.micro}>{dest}"] += span.bytes
    return found


def three(subject: Subject, **fields: Any) -> Plan:
    plan: Plan = subject.plan(("pi", 0, 0), ("nuc", 1, 1), ("cloud", 2, 2), **fields)
    return plan


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_the_bytes_on_the_links_are_the_planned_ones(
    small: Subject, run_plan: RunPlan, codec: str, micro_batches: int
) -> None:
    plan = three(small, codec=codec, micro_batches=micro_batches, in_flight=2)
    ran = run_plan(small, plan, STEPS)
    expected = planned(plan)
    assert sum(name.startswith(("act", "grad")) for name in expected) == 4 * micro_batches
    for step in measured(ran):
        assert set(step) == set(expected)
        for name, planned_bytes in expected.items():
            coded = codec == "int8" and not name.startswith("target")
            # the two numbers of the eight-bit code travel in the message's header
            assert step[name] == planned_bytes - (PLANNED_HEADER_BYTES if coded else 0)


def test_coded_training_stays_near_plain_training(small: Subject, run_plan: RunPlan) -> None:
    plain, half, eighth = (
        run_plan(small, three(small, codec=codec), STEPS) for codec in ("none", "fp16", "int8")
    )
    sizes = [
        sum(b for n, b in measured(ran)[0].items() if not n.startswith("target"))
        for ran in (plain, half, eighth)
    ]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]
    before = small.state()
    for ran, tolerance in ((half, 0.02), (eighth, 0.2)):
        assert ran.outcome.losses[STEPS - 1] == pytest.approx(
            plain.outcome.losses[STEPS - 1], rel=tolerance
        )
        for name, tensor in ran.state.items():
            moved = float((plain.state[name] - before[name]).norm())
            off = float((tensor - plain.state[name]).norm())
            assert 0 < off < tolerance * moved


@pytest.mark.parametrize("route", ["min", "store_and_forward"])
def test_a_relay_passes_on_what_is_not_for_it(
    make_subject: Callable[..., Subject], row: Fleet, run_plan: RunPlan, route: str
) -> None:
    """nuc has no layers; messages are large enough to be cut into pieces on the way."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(50, 600), torch.nn.ReLU(), torch.nn.Linear(600, 10)
    )
    subject = make_subject(module, (50,), 40)  # 96,000 bytes over the cut
    plan = subject.plan(("pi", 0, 0), ("cloud", 1, 1), fleet=row, route=route)
    ran = run_plan(subject, plan, STEPS)
    alone = run_plan(subject, subject.plan(("pi", 0, 1)), STEPS)
    for name, tensor in alone.state.items():
        torch.testing.assert_close(ran.state[name], tensor, rtol=0, atol=1e-6)
    expected = planned(plan)
    assert expected["act1.0>cloud"] >= 96_000
    for channels in ({"pi>nuc", "cloud>nuc"}, {"nuc>cloud", "nuc>pi"}):
        assert all(step == expected for step in measured(ran, channels))
    pieces = [s for s in ran.timeline.spans if s.where == "pi>nuc" and s.label == "act1>cloud"]
    assert (len(pieces) > STEPS) == (route == "min")
    assert ran.nodes["nuc"].counts["relayed"] >= 2 * STEPS
    assert ran.nodes["cloud"].counts.get("relayed", 0) == 0
