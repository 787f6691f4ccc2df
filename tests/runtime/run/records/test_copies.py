"""Devices report their copies one by one; a copy counts when it is whole."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
from safetensors.torch import save

from weft.runtime.run.dispatch import State
from weft.runtime.run.records.copies import Copies, Copy
from weft.runtime.wire import messages as msg

BOTH = ("pi", "nuc")


def kept(device: str, step: int) -> msg.Kept:
    return msg.Kept(device, 0, step, save({"w": torch.full((1,), float(step))}))


def place(states: Mapping[str, tuple[State, State]], state: State, memory: State) -> None:
    state |= {f"{device}/{n}": t for device, (own, _) in states.items() for n, t in own.items()}


def took(copies: Copies, device: str, step: int) -> Copy | None:
    return copies.take(kept(device, step), BOTH, place, {})


def test_a_copy_is_whole_when_all_devices_have_reported_the_same_minibatch() -> None:
    copies = Copies(Copy(0, {}, {}))
    assert took(copies, "pi", 9) is None
    assert took(copies, "pi", 19) is None
    copy = took(copies, "nuc", 9)
    assert copy is not None
    assert (copy.step, copy.state["pi/w"].item()) == (10, 9.0)
    assert copies.newest is copy


def test_where_nobody_waits_a_copy_has_the_newest_state_of_each_device() -> None:
    """A fast peer reported hundreds of states that no slow peer ever met."""
    copies = Copies(Copy(0, {}, {}), together=False)
    for step in range(9, 1000, 10):
        assert took(copies, "pi", step) is None
    assert sum(len(parts) for parts in copies._parts.values()) == 1
    copy = took(copies, "nuc", 9)
    assert copy is not None
    assert (copy.step, copy.state["pi/w"].item(), copy.state["nuc/w"].item()) == (10, 999.0, 9.0)
    assert took(copies, "pi", 1009) is None  # the slow one has nothing new
    following = took(copies, "nuc", 19)
    assert following is not None
    assert (following.step, following.state["pi/w"].item()) == (20, 1009.0)


def test_a_report_that_begins_again_counts_when_it_is_whole_again() -> None:
    """After a run went back, a device comes to the same minibatch a second time."""
    copies = Copies(Copy(0, {}, {}))
    assert took(copies, "pi", 9) is None
    first = msgspec.structs.replace(kept("pi", 9), last=False)
    assert copies.take(first, BOTH, place, {}) is None
    assert took(copies, "nuc", 9) is None
    second = msg.Kept("pi", 0, 9, save({"v": torch.ones(1)}), number=1)
    copy = copies.take(second, BOTH, place, {})
    assert copy is not None
    assert copy.state.keys() == {"pi/w", "pi/v", "nuc/w"}


def test_a_device_that_reports_without_end_fills_no_memory() -> None:
    """Seen: ever new minibatches, each without an end, were all kept at the run."""
    copies = Copies(Copy(0, {}, {}), most=1 << 20)
    data = save({"w": torch.zeros(16 * 1024)})
    for step in range(1000):
        copies.take(msg.Kept("bad", 0, step, data, last=False), BOTH, place, {})
    for number in range(1000):
        copies.take(msg.Kept("bad", 0, 5000, data, last=False, number=number), BOTH, place, {})
    held = sum(pieces.bytes for parts in copies._parts.values() for pieces in parts.values())
    assert held <= 1 << 20
    for step in range(6000, 7000):  # without any data
        copies.take(msg.Kept("bad", 0, step, save({}), last=False), BOTH, place, {})
    assert len(copies._parts) < 300
    assert took(copies, "pi", 9000) is None
    assert took(copies, "nuc", 9000) is not None  # a copy of the others becomes whole
