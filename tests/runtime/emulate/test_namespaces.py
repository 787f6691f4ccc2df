"""The root variant: real TCP between network namespaces, shaped by the kernel."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link, Medium
from weft.runtime.emulate.namespaces import NamespaceFleet
from weft.runtime.run.jobs import Settings
from weft.runtime.run.run import Run


def possible() -> bool:
    """Whether this process may make network namespaces and shape what goes between them."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("tc"):
        return False
    name = f"weft-try-{os.getpid()}"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=10)
        shaped = subprocess.run(
            ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf",
             "rate", "1mbit", "burst", "32kb", "latency", "400ms"],
            capture_output=True, timeout=10,
        )  # fmt: skip
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return made.returncode == 0 and shaped.returncode == 0


def there(tag: str) -> list[str]:
    """Namespaces and interfaces on this machine whose name has that tag."""
    listed = [
        subprocess.run(["ip", *what], capture_output=True, text=True).stdout
        for what in (["netns", "list"], ["-o", "link"])
    ]
    return [line for text in listed for line in text.splitlines() if tag in line]


def fleet(*names: str) -> Fleet:
    pairs = itertools.pairwise(names)
    return Fleet(
        tuple(Device(name, gflops=1.0) for name in names),
        tuple(Link(pair, 20.0, 20.0, 1.0) for pair in pairs),
    )


@pytest.mark.skipif(not possible(), reason="needs root and a kernel with network namespaces")
def test_training_through_namespaces_gives_the_same_weights_and_leaves_nothing_behind(
    make_subject: Callable[..., Any], run_plan: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(20, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10)
    )
    subject = make_subject(module, (20,), 64)  # 102,400 bytes each way: 41 ms at 20 Mbit/s
    row = fleet("pi", "nuc", "cloud")
    plan = subject.plan(("pi", 0, 0), ("cloud", 1, 1), fleet=row)
    with NamespaceFleet(row, ("pi", "nuc", "cloud")) as local:
        local.crew.wait_for(local.names, 180.0)
        tag = local.space("pi").split("-")[1]
        assert len(there(tag)) >= 3 + 1 + 3  # namespaces, the bridge, the way to it from each
        settings = Settings(shaping="latency", scratch=local.scratch, same_clock=True)
        with Run(local.crew, plan, subject.graph, subject.state(), settings, subject.feed) as run:
            run.prepare()
            run.steps(0, 6)
            state, _ = run.collect()
            timeline, counts = run.timeline()
    assert there(tag) == []
    expected = run_plan(subject, subject.plan(("pi", 0, 1)), 6).state
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-5)
    assert counts["nuc"].counts["relayed"] >= 12
    # Past the burst, two hops both ways cannot be faster than the kernel lets them through.
    assert timeline.step_s > 2 * 0.8 * (102_400 - 2 * 32_768) * 8 / 20e6


def test_a_shared_medium_or_no_root_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    air = Fleet((Device("gw"), Device("a")), medium=(Medium("air", "gw", ("a",), 10.0),))
    with pytest.raises(InputError, match="--local"):
        NamespaceFleet(air, ("gw", "a"))
    assert list(tmp_path.iterdir()) == []
