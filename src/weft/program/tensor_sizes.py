"""The bytes of the tensors, weights and activations of a program, for every kind of plan.

sizes = Sizes(program)
sizes.tensor(Tensor("act", 3, micro=1))      # decoded, not as on the wire
sizes.weights("pi")                          # of all layers, or parts of them, that pi holds
"""

from __future__ import annotations

from math import prod

from weft.dtypes import DTYPE_BYTES
from weft.graph.network import Blank
from weft.program.instructions import (
    Backward,
    Clip,
    Extract,
    Forward,
    Instruction,
    Load,
    Loss,
    Miss,
    Pool,
    Recv,
    Share,
    Squares,
    Stitch,
    Tensor,
    Update,
)
from weft.program.program import Program

NUMBER = 4  # bytes of a number that peers exchange
_OF_WEIGHTS = ("wgrad", "wsum", "follow")


class Sizes:
    """Sizes in bytes. A tensor has the same name and size on every device."""

    def __init__(self, program: Program) -> None:
        self.program, self.plan = program, program.plan
        self.profile = program.plan.profile
        self.training = program.plan.mode == "train"
        self._params = [layer.param_bytes for layer in self.profile.layers]
        self._saved = [layer.saved_bytes for layer in self.profile.layers]
        self._rounds = {r.layers: r.numbered for r in self.plan.rounds}
        self._peers = {p.device: p for p in self.plan.peers.peers} if self.plan.peers else {}
        self._places = self._place_bytes()
        self._samples: dict[int, int] = {}
        self._known: dict[Tensor, int] = {}
        for device, code in program.code.items():
            for i in code:
                self._learn(device, i)

    def tensor(self, t: Tensor) -> int:
        """The bytes of a tensor as a device computes with it."""
        if t.kind in _OF_WEIGHTS:
            return sum(self._params[t.at : t.last + 1])
        return self._known.get(t, 0)

    def weights(self, device: str) -> int:
        """The weights that a device holds: every layer, or part of a layer, once."""
        if device in self._peers:
            return self._peers[device].weights_bytes
        parts: dict[tuple[tuple[int, int], int], int] = {}
        for i in self.program.code[device]:
            if isinstance(i, Forward | Update):
                key = (i.layers, 0 if i.layers in self._rounds else i.part)
                parts[key] = max(parts.get(key, 0), self.held_weights(device, i))
        return sum(parts.values())

    def held_weights(self, device: str, i: Forward | Backward | Update) -> int:
        """The weights that an instruction reads, or whose gradients it makes."""
        if device in self._peers:
            return self._peers[device].weights_bytes
        if i.layers in self._rounds:
            return self._rounds[i.layers][i.part].state_bytes
        first, last = i.layers
        if i.work:
            pairs = zip(self._params[first : last + 1], i.work, strict=True)
            return round(sum(size * share for size, share in pairs))
        return sum(self._params[first : last + 1])

    def largest_weights(self, device: str, i: Backward | Update) -> int:
        """The weights of the largest layer that an instruction works on."""
        if device in self._peers:
            return max(self._params, default=0)
        return max(self._params[i.layers[0] : i.layers[1] + 1], default=0)

    def saved(self, device: str, i: Forward) -> int:
        """Activations that a forward pass keeps for its backward pass."""
        if device in self._peers:
            return self._peers[device].saved_bytes * i.samples
        return self._by_layers(i, self._saved) * i.samples

    def working(self, i: Forward | Backward) -> int:
        """Bytes that one layer needs while it is computed: its input, its output and the values between them,
        or their gradients."""
        first, last = i.layers
        cut = self.profile.cut_bytes
        layers = range(first, last + 1)
        shares = i.work or (1.0,) * len(layers)
        most = max(
            round(share * (cut(m) + cut(m + 1) + self._saved[m]))
            for m, share in zip(layers, shares, strict=True)
        )
        if i.layers in self._rounds:  # the values before and after the layers, if they are larger
            turn = self._rounds[i.layers][i.part]
            most = max(most, sum(strip.size for strip in (*turn.takes, *turn.gives)))
        return most * i.samples

    def group(self, group: int) -> int:
        """The numbers of a group that peers exchange."""
        for peer in self._peers.values():
            if peer.has(group):
                return NUMBER * peer.of(group).numbers
        return 0

    def _by_layers(self, i: Forward, sizes: list[int]) -> int:
        first, last = i.layers
        if i.work:
            return round(
                sum(s * share for s, share in zip(sizes[first : last + 1], i.work, strict=True))
            )
        return sum(sizes[first : last + 1])

    def _place_bytes(self) -> dict[str, int]:
        """For each value, the bytes of one place (a row, a unit, a number) of one sample."""
        places = {
            strip.value: strip.bytes
            for r in self.plan.rounds
            for turn in r.numbered.values()
            for strip in (*turn.takes, *turn.gives)
        }
        if self.plan.swarm is not None:
            places |= {v.value: blank_bytes(v) // v.shape[1] for v in self.plan.swarm.values}
        return places

    def _learn(self, device: str, i: Instruction) -> None:
        """The sizes of the tensors that an instruction makes."""
        known, profile = self._known, self.profile
        match i:
            case Load():
                count = i.samples[1] - i.samples[0]
                self._samples[i.micro] = count
                known[Tensor("act", 0, i.micro)] = count * profile.input_bytes
                known[Tensor("target", 0, i.micro)] = profile.labels_bytes(count)
            case Forward():
                self._samples[i.micro] = i.samples
                made_tensor = Tensor("act", i.layers[1] + 1, i.micro, part=i.part)
                known[made_tensor] = i.samples * self._made(i)
            case Loss():
                output = Tensor("grad", len(profile.layers), i.micro, part=i.part)
                known[output] = i.samples * profile.gradient_bytes(len(profile.layers))
            case Backward(layers=(first, _)):
                if i.part:
                    read = known.get(Tensor("in", first, i.micro, part=i.part), 0)
                    known[Tensor("back", first, i.micro, part=i.part)] = read
                else:
                    size = i.samples * profile.gradient_bytes(first)
                    known[Tensor("grad", first, i.micro)] = size
            case Stitch():
                sizes = [self._extract(extract) for extract in i.pieces]
                known[i.into] = max(sizes, default=0) if i.add else sum(sizes)
            case Pool():
                known[i.into] = dict(self.plan.norms)[i.into.at]
            case Squares() | Clip():
                known[i.into] = NUMBER
            case Share():
                known[i.into] = self.group(i.group)
            case Recv(blanks=blanks, samples=count) | Miss(blanks=blanks, samples=count) if blanks:
                known.setdefault(i.tensor, count * sum(blank_bytes(b) for b in blanks))
            case _:
                pass

    def _made(self, i: Forward) -> int:
        """The output of a forward pass, per sample."""
        if i.layers in self._rounds:
            return sum(strip.size for strip in self._rounds[i.layers][i.part].gives)
        whole = self.profile.cut_bytes(i.layers[1] + 1)
        return round(whole * i.work[-1]) if i.work else whole

    def _extract(self, extract: Extract) -> int:
        place = self._places.get(extract.value, NUMBER)
        samples = self._samples.get(extract.tensor.micro, 1) if self._places else 1
        return (extract.last - extract.first) * place * samples


def blank_bytes(blank: Blank) -> int:
    """The bytes of one sample of a value."""
    return prod(blank.shape[1:]) * DTYPE_BYTES.get(blank.dtype, 4)
