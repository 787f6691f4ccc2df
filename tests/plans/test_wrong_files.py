"""Files with something wrong in them: each loader takes them, or refuses them in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import zeros

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.fleet.parse import load_fleet
from weft.fleet.trace import Trace
from weft.planning.decide import load_plan
from weft.plans.derive import load_profile
from weft.plans.plan import Plan
from weft.runtime.run.inference import _read
from weft.runtime.run.records.plan_changes import PlanRecord

FLEET = """[[device]]
name = "a"
gflops = 1.0
data = true
[[device]]
name = "b"
memory_mb = 100
[[link]]
between = ["a", "b"]
mbps = 5.0
latency_ms = 2.0
loss = 0.1
"""
PROFILE = {
    "model": "m", "input_bytes": 4, "layers": [{"name": "l", "param_bytes": 4, "output_bytes": 4}],
    "devices": {"a": {"forward_s": [0.1], "backward_s": [0.1], "update_s": [0.1]}},
}  # fmt: skip
TRACE = {"links": {"a>b": [[0.0, 1.0]]}, "events": []}
ODD: list[Any] = [
    None, True, -1, 0, 2**63, 1e308, -1e308, "", "x" * 300, [], {}, [[]], "**", "../x", 10**30, 0.5,
]  # fmt: skip


@pytest.fixture(scope="module")
def valid(
    tmp_path_factory: pytest.TempPathFactory, make_lanes: Callable[..., Plan]
) -> tuple[Path, dict[str, bytes], Fleet]:
    """A folder for files, a valid one for each loader, and the fleet that a trace is for."""
    folder = tmp_path_factory.mktemp("files")
    plan = make_lanes((3, "aab"), (1, "bbb"))
    plan.save(folder / "plan")
    document = (folder / "plan").read_bytes()
    record = b'{"first": %b, "changes": [{"step": 5, "plan": %b}]}' % (document, document)
    return folder, {
        "plan": document, "record": record, "fleet": FLEET.encode(), "weights": save({"w": zeros(3)}),
        "profile": msgspec.json.encode(PROFILE), "trace": msgspec.json.encode(TRACE),
    }, plan.fleet  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["plan", "record", "fleet", "profile", "trace", "weights"]), draw=st.data()
)
def test_a_wrong_file_is_refused_in_words(
    valid: tuple[Path, dict[str, bytes], Fleet], kind: str, draw: st.DataObject
) -> None:
    folder, files, fleet = valid
    data = files[kind]
    if kind in ("plan", "record", "profile", "trace") and draw.draw(st.booleans()):
        document = msgspec.json.decode(data)
        places = list(leaves(document))
        holder, key = draw.draw(st.sampled_from(places))
        holder[key] = draw.draw(st.sampled_from(ODD))
        data = msgspec.json.encode(document)
    else:
        place = draw.draw(st.integers(0, len(data)))
        data = (
            data[:place]
            + draw.draw(st.binary(max_size=9))
            + data[place + draw.draw(st.integers(0, 9)) :]
        )
    path = folder / "wrong"
    path.write_bytes(data)
    load: dict[str, Callable[[Path], object]] = {
        "plan": load_plan, "record": PlanRecord.load, "fleet": load_fleet, "profile": load_profile,
        "trace": lambda file: Trace.load(file, fleet), "weights": lambda file: _read(file, "--weights"),
    }  # fmt: skip
    with contextlib.suppress(InputError):
        load[kind](path)


def leaves(document: Any) -> Iterator[tuple[Any, Any]]:
    """(the object or list, the key) of every value, inner ones first."""
    items = list(document.items()) if isinstance(document, dict) else list(enumerate(document))
    for key, value in items:
        if isinstance(value, dict | list):
            yield from leaves(value)
        yield document, key
