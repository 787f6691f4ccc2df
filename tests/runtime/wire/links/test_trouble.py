"""An emulated fleet's trouble reaches its nodes: cut links, for a while or for good, and slower devices."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire.links import trouble
from weft.runtime.wire.links.trouble import Trouble, Troubles, write_trouble


def test_a_node_sees_its_own_links_and_its_own_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "LOOK_S", 0.0)
    pi, nuc, box = (Troubles(tmp_path, name) for name in ("pi", "nuc", "box"))
    assert (pi.cut_until("nuc"), pi.slowdown) == (0.0, 1.0)
    write_trouble(tmp_path, Trouble((("pi", "nuc", 5.0), ("pi", "nuc", 7.0)), {"nuc": 8.0}))
    assert pi.cut_until("nuc") == nuc.cut_until("pi") == 7.0
    assert pi.cut_until("box") == box.cut_until("pi") == 0.0
    assert (pi.slowdown, nuc.slowdown) == (1.0, 8.0)
    write_trouble(tmp_path, Trouble())
    assert (pi.cut_until("nuc"), nuc.slowdown) == (0.0, 1.0)


def test_a_link_can_be_cut_for_good() -> None:
    """Infinity was written as null once, and the nodes saw no cut at all."""
    fleet = LocalFleet(("pi", "nuc"))
    try:
        fleet.cut("pi", "nuc", math.inf)
        assert Troubles(fleet.scratch, "pi").cut_until("nuc") > time.monotonic() + 1e9
    finally:
        fleet.close()


def test_a_real_node_has_no_trouble() -> None:
    assert Troubles(None, "pi").cut_until("nuc") == 0.0
    assert Troubles(None, "pi").slowdown == 1.0
