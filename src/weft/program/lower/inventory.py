"""Records which device holds which strips of which values, while a plan's rounds are lowered.

inventory.add("r1", tensor, Strip("conv3", 0, 8, 512))
inventory.missing("r1", Strip("conv3", 0, 10, 512))     # [rows 8:10]
inventory.pieces("r1", Strip("conv3", 2, 6, 512))       # the tensors that contain them
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from weft.errors import WeftError
from weft.plans.rounds import Strip
from weft.program.instructions import Extract, Tensor


class _Held(NamedTuple):
    tensor: Tensor
    first: int
    last: int
    offset: int  # position of `first` in the tensor's value


class Inventory:
    """Which device holds which places of which value, while a program is written."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[_Held]] = defaultdict(list)  # by device and value
        self._tensors: set[tuple[str, Tensor]] = set()

    def has(self, device: str, tensor: Tensor) -> bool:
        return (device, tensor) in self._tensors

    def add(self, device: str, tensor: Tensor, strip: Strip) -> None:
        self.add_all(device, tensor, [strip])

    def add_all(self, device: str, tensor: Tensor, strips: list[Strip]) -> None:
        """Adds a tensor that consists of these strips. The strips of one value follow each other."""
        self._tensors.add((device, tensor))
        filled: dict[str, int] = defaultdict(int)
        for strip in strips:
            held = _Held(tensor, strip.first, strip.last, filled[strip.value])
            self._held[device, strip.value].append(held)
            filled[strip.value] += strip.last - strip.first

    def pieces(self, device: str, strip: Strip) -> list[Extract]:
        """The pieces of tensors that make up a strip on a device, in order."""
        extracts: list[Extract] = []
        place = strip.first
        while place < strip.last:
            held = self._best(device, strip.value, place)
            if held is None:
                raise WeftError(
                    f"plan: {device} needs place {place} of {strip.value}, which never reaches it"
                )
            end = min(held.last, strip.last)
            begin = held.offset + place - held.first
            extracts.append(
                Extract(held.tensor, strip.value, strip.dim, begin, begin + end - place)
            )
            place = end
        return extracts

    def missing(self, device: str, strip: Strip) -> list[Strip]:
        """The parts of a strip that a device does not hold."""
        gaps: list[Strip] = []
        place = strip.first
        while place < strip.last:
            held = self._best(device, strip.value, place)
            if held is not None:
                place = held.last
                continue
            after = (h.first for h in self._held[device, strip.value] if h.first > place)
            end = min([strip.last, *after])
            gaps.append(Strip(strip.value, place, end, strip.bytes, strip.dim))
            place = end
        return gaps

    def union(self, device: str, wanted: list[Strip], beside: str) -> list[Strip]:
        """The places of the wanted strips that `device` holds and `beside` does not, each place once."""
        places: dict[str, set[int]] = defaultdict(set)
        like: dict[str, Strip] = {}
        for strip in wanted:
            like[strip.value] = strip
            for held in self._held[device, strip.value]:
                overlap = range(max(held.first, strip.first), min(held.last, strip.last))
                places[strip.value].update(overlap)
        strips: list[Strip] = []
        for value, numbers in places.items():
            for held in self._held[beside, value]:
                numbers -= set(range(held.first, held.last))
            strips += [
                Strip(value, first, last, like[value].bytes, like[value].dim)
                for first, last in _runs(numbers)
            ]
        return strips

    def _best(self, device: str, value: str, place: int) -> _Held | None:
        """The tensor that has this place and the most places after it."""
        holding = [h for h in self._held[device, value] if h.first <= place < h.last]
        return max(holding, key=lambda h: h.last, default=None)


def _runs(places: set[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers, as (first, last + 1)."""
    runs: list[tuple[int, int]] = []
    for place in sorted(places):
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs
