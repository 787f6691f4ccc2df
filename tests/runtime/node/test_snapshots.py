"""A device's copies: nothing that is due is overwritten, and a slow link is not filled."""

from __future__ import annotations

import json
import threading
from typing import Any

import torch
from safetensors.torch import save

from weft.runtime.node.snapshots import Snapshots
from weft.runtime.wire import messages as msg
from weft.runtime.wire.state_pieces import KEPT_BYTES, Pieces, kept_pieces


class Link:
    """Carries nothing until it is opened."""

    def __init__(self) -> None:
        self.open, self.came = threading.Event(), threading.Event()
        self.pieces: list[msg.Kept] = []

    def report(self, piece: Any) -> None:
        assert self.open.wait(60)
        self.pieces.append(piece)
        if piece.last:
            self.came.set()


def state(value: float) -> dict[str, torch.Tensor]:
    large = KEPT_BYTES // 4 * 2 + 7  # a little more than two pieces
    return {"large": torch.full((1, large), value), "small": torch.tensor([value]),
            "count": torch.tensor(3)}  # fmt: skip


def test_a_copy_travels_in_pieces_of_a_megabyte_and_comes_together_again() -> None:
    link = Link()
    link.open.set()
    snapshots = Snapshots(link.report, "pi", 0)
    snapshots.take(9, state(1.5), {"large/momentum": state(2.5)["large"]})
    assert link.came.wait(60)
    assert max(len(piece.data) for piece in link.pieces) <= KEPT_BYTES + 1024
    copy = Pieces()
    whole = [copy.take(piece) for piece in link.pieces]
    assert whole == [False] * (len(whole) - 1) + [True]
    for name, tensor in state(1.5).items():
        assert torch.equal(copy.state[name], tensor), name
    assert torch.equal(copy.memory["large/momentum"], state(2.5)["large"])


def test_a_copy_with_a_piece_lost_doubled_or_out_of_turn_is_no_copy() -> None:
    """Seen in thought: without a piece in the middle a copy counted as whole, and a run went back to it."""
    head = msg.Kept("pi", 0, 9, b"")
    large = torch.zeros(KEPT_BYTES // 4)
    pieces = list(kept_pieces(head, {"a": large, "b": large, "c": large}, {"c/m": large}))
    assert [piece.number for piece in pieces] == [0, 1, 2, 3]
    a, b, c, memory = pieces
    for broken in (
        [a, c, memory],
        [b, c, memory],
        [a, b, c, c, memory],
        [a, c, b, memory],
        [memory],
    ):
        copy = Pieces()
        assert not any(copy.take(piece) for piece in broken)
    copy = Pieces()
    assert [copy.take(piece) for piece in pieces] == [False, False, False, True]
    assert copy.state.keys() == {"a", "b", "c"}


def test_a_piece_that_cannot_be_read_makes_no_copy() -> None:
    copy = Pieces()
    assert not copy.take(msg.Kept("pi", 0, 9, b"junk", last=False))
    assert not copy.take(msg.Kept("pi", 0, 9, b"junk", number=1))
    impossible = {"w": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}
    head = json.dumps(impossible).encode()
    data = len(head).to_bytes(8, "little") + head
    assert not Pieces().take(msg.Kept("pi", 0, 9, data))
    slice_of_nothing = msg.Cut("w", (2**63,), True)
    row = save({"": torch.zeros(4)})
    assert not Pieces().take(msg.Kept("pi", 0, 9, row, cut=slice_of_nothing))


def test_a_copy_that_is_due_is_not_overwritten_before_it_is_reported() -> None:
    """A slow link had the newest copy twice, and that of a save never."""
    link = Link()
    snapshots = Snapshots(link.report, "pi", 0)
    assert not snapshots.busy
    snapshots.take(9, {"w": torch.tensor([9.0])}, {})
    snapshots.take(19, {"w": torch.tensor([19.0])}, {})
    assert snapshots.busy
    snapshots.take(29, {"w": torch.tensor([29.0])}, {}, is_over=lambda: True)  # no buffer is free
    assert snapshots.at(9) is not None  # going back does not wait for the link
    link.open.set()
    snapshots.close()
    assert [piece.step for piece in link.pieces] == [9, 19]
    assert not snapshots.busy


def test_a_copy_that_cannot_be_reported_does_not_stop_those_behind_it() -> None:
    """The thread had ended: each further copy waited for half a minute, and then was left out."""
    came: list[int] = []
    told = threading.Event()

    def report(piece: Any) -> None:
        if piece.step == 9:
            raise RuntimeError("no way to the coordinator")
        came.append(piece.step)
        told.set()

    snapshots = Snapshots(report, "pi", 0)
    snapshots.take(9, {"w": torch.ones(3)}, {})
    snapshots.take(19, {"w": torch.ones(3)}, {})
    assert told.wait(10.0)
    snapshots.close()
    assert came == [19]
    assert not snapshots.busy
    assert snapshots.at(9) is not None  # the device itself can go back to it
