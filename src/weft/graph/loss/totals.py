"""Takes a loss apart so that its pieces add up exactly: sums over targets of the whole minibatch come first.

    cut = take_apart(record, values)     # a CutLoss, or the reason why there is none

A loss is f of sums over samples. Sums that read targets alone (counts of a mask, class weights, the number of
samples) are the *totals*: whoever has the targets computes them for the whole minibatch. The rest must be
linear in the sums that read outputs. Then a piece's loss, computed with the totals of the minibatch, is its
exact part of the loss, and its gradient is exact too:

    cross entropy with class weights    sum over a piece of w[t] * -log p[t]   /   total of w[t]

The graph of the loss decides, operator by operator. The probe (`loss_probe`) checks the result with numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from weft.graph.network import Arg, Atom, Batch, CutLoss, Loss, Node, Ref, Value, refs
from weft.graph.operators import calls

TOTAL = "loss@"  # prefix of a total's name; no node of an exported graph has such a name

# Where these operators have their reduction (0: none, 1: mean, 2: sum); a mean is their default.
_REDUCTIONS = {
    "mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "kl_div": 2,
    "binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4,
    "cross_entropy_loss": 3, "nll_loss": 3, "nll_loss_nd": 3,
}  # fmt: skip
_OF_CLASSES = {"cross_entropy_loss", "nll_loss", "nll_loss_nd"}
_MEAN, _SUM = 1, 2
_SCALED = {"mul", "div"}
_ADDED = {"add", "sub", "rsub"}
_LINEAR = {
    "neg", "sum", "view", "reshape", "squeeze", "unsqueeze", "alias", "clone", "contiguous", "select",
    "flatten", "slice", "mean", "expand", "permute", "transpose", "t",
}  # fmt: skip


class Inseparable(Exception):
    """Why a loss cannot be taken apart."""


class Nonlinear(Inseparable):
    """The loss is not linear in sums over samples."""


def take_apart(record: Loss, values: Mapping[str, Value]) -> CutLoss | str:
    """The loss as totals over targets and a sum over pieces; in words why not, if it is no such thing.

    `values` are those of the loss's inputs and nodes, under the names that the record has for them.
    """
    try:
        return _Parts(record, values).cut()
    except Inseparable as reason:
        return str(reason)


def nonlinear(record: Loss, values: Mapping[str, Value]) -> str:
    """What a loss does with a sum over samples that is not linear; empty if nothing.

    It shows what a probe with random numbers cannot: a limit that none of its draws reached.
    """
    try:
        _Parts(record, values).check()
    except Nonlinear as reason:
        return str(reason)
    except Inseparable:
        pass
    return ""


def counts_targets(
    record: Loss, values: Mapping[str, Value], absent: Callable[[int], bool]
) -> bool:
    """Whether a loss reads a sum over the numbers in its targets, such as the count of a mask.

    Then it has totals, even if no target at hand is masked: those of a later minibatch may be. `absent` says
    which class numbers no target will ever have.
    """
    return _Parts(record, values, absent).counts()


class _Parts:
    def __init__(
        self,
        record: Loss,
        values: Mapping[str, Value],
        absent: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.record, self.values, self.absent = record, values, absent
        self.grows = {name: values[name].scales for name in values}
        self.nodes: list[Node] = []
        made = {node.name: node for node in record.nodes}
        for node in record.nodes:
            self._spell(self._of_one_shape(node, made))
        # What reads an output of the network, and what depends on the targets or on the number of samples.
        self.of_outputs, self.varies = set(record.reads), {*record.targets}
        self.shared: set[str] = set()  # sums to which each piece adds its share of a number
        spelled, self.nodes = self.nodes, []
        for node in spelled:
            names = set(refs(node))
            if names & self.of_outputs:
                self.of_outputs.add(node.name)
                self._shared(node)
                continue
            if names & self.varies or _batches(node):
                self.varies.add(node.name)
            self.nodes.append(node)
        self.nodes = self._needed([record.output], without=lambda _: False)  # tests of data are not

    def check(self) -> None:
        """Raises Inseparable at the first operator that is in the way."""
        for node in self.nodes:
            if node.name in self.of_outputs:
                self._check(node)

    def counts(self) -> bool:
        """Whether what reads outputs reads a total that follows from the numbers in the targets."""
        follows = set(self.record.targets)
        for node in self.nodes:
            if node.name not in self.of_outputs and follows & set(refs(node)):
                follows.add(node.name)
        return any(
            name in follows and self._is_total(name)
            for node in self.nodes
            if node.name in self.of_outputs
            for name in refs(node)
        )

    def cut(self) -> CutLoss:
        self.check()
        if self.record.output not in self.of_outputs or self._grows(self.record.output):
            raise Inseparable("it is no sum over samples")
        rest = self._needed([self.record.output], without=self._is_total)
        read = dict.fromkeys(n for node in rest for n in refs(node) if self._is_total(n))
        totals = {name: f"{TOTAL}{k}" for k, name in enumerate(read)}
        return CutLoss(
            nodes=[_reading(node, totals) for node in rest],
            totals=tuple(totals.values()),
            sums=[_named(n, totals) for n in self._needed(list(totals), without=lambda _: False)],
        )

    def _of_one_shape(self, node: Node, made: Mapping[str, Node]) -> Node:
        """torch broadcasts outputs and targets together, and later readers of a target read the result. Where
        it has the target's own shape, it is the target, which does not follow from any output."""
        source = made.get(_first(node)) if node.op == calls.GETITEM else None
        if source is None or _kind(source) != "broadcast_tensors":
            return node
        operands, number = source.args[0], node.args[1]
        assert isinstance(operands, list)
        assert isinstance(number, int)
        operand = operands[number]
        own = self.values.get(operand.name) if isinstance(operand, Ref) else None
        same = own is not None and own == self.values.get(node.name)
        return calls.alias(node.name, operand) if same else node

    # --- means as sums over totals ------------------------------------------------------------

    def _spell(self, node: Node) -> None:
        """A mean over samples becomes a sum and a total by which it is divided."""
        kind = _kind(node)
        if kind in _REDUCTIONS:
            args = _filled(node, _REDUCTIONS[kind])
            if args[_REDUCTIONS[kind]] == _MEAN:
                args[_REDUCTIONS[kind]] = _SUM
                count = self._classes(node) if kind in _OF_CLASSES else self._count(node)
                self._quotient(node, msgspec.structs.replace(node, args=args), count)
                return
        elif kind == "mean" and self._grows(_first(node)) and not self._grows(node.name):
            self._quotient(node, calls.summed_like_mean(node.name, node), self._count(node))
            return
        if kind in {*_SCALED, *_ADDED} and any(isinstance(a, Batch) for a in node.args):
            self._with_batch(node)
            return
        self._add(node)

    def _quotient(self, node: Node, summed: Node, count: str) -> None:
        self._add(msgspec.structs.replace(summed, name=f"{node.name}@sum"))
        self._add(calls.divided(node.name, f"{node.name}@sum", count))

    def _with_batch(self, node: Node) -> None:
        """The number of samples in a product or a quotient is that of the minibatch."""
        args: list[Arg] = []
        for position, arg in enumerate(node.args):
            if isinstance(arg, Batch):
                args.append(Ref(self._number(f"{node.name}@{position}", arg)))
            else:
                args.append(arg)
        self._add(Node(node.name, f"aten.{_kind(node)}.Tensor", args, node.kwargs))

    def _shared(self, node: Node) -> None:
        """Adds a node. A number beside a sum over samples (`1 - sum`) is shared among the pieces, by their
        samples."""
        operands = node.args[:2]
        sums = [n for n in refs(node) if n in self.of_outputs]
        if _kind(node) not in _ADDED or len(sums) != 1 or self._grows(sums[0]) or len(operands) < 2:
            self.nodes.append(node)
            return
        piece, whole, share = (f"{node.name}@{word}" for word in ("piece", "samples", "share"))
        number = (
            operands[1]
            if isinstance(operands[0], Ref) and operands[0].name in sums
            else operands[0]
        )
        if isinstance(number, Ref) and self._grows(number.name):
            self.nodes.append(node)
            return
        self._add(calls.number(piece, Batch(1)))
        self._add(calls.number(whole, Batch(1)))
        self.varies.add(whole)
        self._add(calls.divided(f"{node.name}@part", piece, whole))
        beside = number.name if isinstance(number, Ref) else f"{node.name}@number"
        if not isinstance(number, Ref):
            assert not isinstance(number, list)
            self._add(calls.number(beside, number))
        self._add(calls.multiplied(share, f"{node.name}@part", beside))
        args = [Ref(share) if a is number else a for a in operands]
        self.shared.add(node.name)
        self.nodes.append(
            Node(node.name, f"aten.{_kind(node)}.Tensor", [*args, *node.args[2:]], node.kwargs)
        )

    def _number(self, name: str, size: Batch) -> str:
        self._add(calls.number(name, size))
        return name

    def _count(self, node: Node) -> str:
        """How many places of the minibatch a mean is over."""
        source = _first(node)
        if source not in self.values:
            raise Inseparable(f"the size of {source} is not known")
        per_sample = math.prod(self.values[source].shape)
        if node.name in self.values:  # a mean over some dimensions has some places left
            per_sample //= max(math.prod(self.values[node.name].shape), 1)
        return self._number(f"{node.name}@count", Batch(per_sample))

    def _classes(self, node: Node) -> str:
        """By what a cross entropy divides: the weights of all targets that it does not ignore."""
        args = _filled(node, 4)
        target, weight, ignored = args[1], args[2], -100 if args[4] is None else args[4]
        assert isinstance(target, Ref)
        value = self.values[target.name]
        if value.differentiable:  # probabilities of all classes
            classes = self.values[_first(node)].shape[1]
            places = math.prod(value.shape) // classes
            return self._number(f"{node.name}@count", Batch(places))
        if weight is None and isinstance(ignored, int) and self.absent(ignored):
            return self._number(f"{node.name}@count", Batch(math.prod(value.shape)))
        name = f"{node.name}@"
        self._add(calls.unequal(f"{name}kept", target, ignored))
        if weight is not None:
            self._add(calls.equal(f"{name}ignored", target, ignored))
            self._add(calls.filled(f"{name}classes", target, f"{name}ignored", 0))
            self._add(calls.looked_up(f"{name}weights", weight, f"{name}classes"))
            self._add(calls.multiplied(f"{name}counted", f"{name}weights", f"{name}kept"))
        counted = f"{name}kept" if weight is None else f"{name}counted"
        self._add(calls.total(f"{name}count", counted))
        return f"{name}count"

    def _add(self, node: Node) -> None:
        """Sums and numbers do not grow with the batch; what the export has no size of does if its operands
        do."""
        if node.name not in self.grows:
            whole = calls.is_whole_sum(node) or node.name.endswith("@sum")
            self.grows[node.name] = not whole and any(self._grows(n) for n in refs(node))
        self.nodes.append(node)

    # --- what may be read from sums ------------------------------------------------------------

    def _grows(self, name: str) -> bool:
        return self.grows.get(name, False)  # state does not

    def _is_total(self, name: str) -> bool:
        return name in self.varies and name not in self.record.targets and not self._grows(name)

    def _check(self, node: Node) -> None:
        """Raises Inseparable unless a node keeps to rows of samples, sums rows, or is linear in sums."""
        read = [n for n in refs(node) if n in self.of_outputs]
        sums = [n for n in read if not self._grows(n)]
        kind = _kind(node)
        if self._grows(node.name):
            if sums:
                raise Inseparable(
                    f"{_shown(node)} of a sample reads a sum over all samples' outputs"
                )
        elif len(sums) < len(read):
            if not (kind == "sum" or (kind in _REDUCTIONS and not sums)):
                # A loss of torch's own is a mean or a sum, as the probe shows. What else looks at all
                # samples (a maximum) may matter only for numbers that the probe does not draw.
                hidden = Inseparable if kind.endswith("loss") else Nonlinear
                raise hidden(f"{_shown(node)} over samples is no sum")
        elif kind in _ADDED:
            if len(read) != 2 and node.name not in self.shared:
                raise Inseparable(
                    f"{_shown(node)} joins a sum over samples with a number that is none"
                )
        elif kind in _SCALED:
            turned = kind == "div" and read[0] != _first(node)
            if len(read) != 1 or turned or "rounding_mode" in node.kwargs:
                raise Nonlinear(f"{_shown(node)} is not linear in sums of outputs")
        elif kind in ("stack", "cat") and len(read) == len(refs(node)):
            return
        elif not (kind in _LINEAR or (kind == "to" and self._is_float(node))):
            raise Nonlinear(f"{_shown(node)} of a sum of outputs is not linear")

    def _is_float(self, node: Node) -> bool:
        return node.name in self.values and self.values[node.name].differentiable

    def _needed(self, names: list[str], without: Callable[[str], bool]) -> list[Node]:
        """The nodes that these results need, in their order; nothing behind what `without` names."""
        wanted = set(names)
        kept = []
        for node in reversed(self.nodes):
            if node.name in wanted and not without(node.name):
                wanted |= set(refs(node))
                kept.append(node)
        return kept[::-1]


def _kind(node: Node) -> str:
    return node.op.split(".")[1] if node.op.startswith("aten.") else node.op


def _shown(node: Node) -> str:
    return f"its operator {_kind(node)}"


def _first(node: Node) -> str:
    first = node.args[0]
    return first.name if isinstance(first, Ref) else ""


def _filled(node: Node, last: int) -> list[Arg]:
    """The arguments up to number `last`, with those that an exported graph leaves out."""
    args = list(node.args)
    reduction = _REDUCTIONS[_kind(node)]
    while len(args) <= last:
        args.append(_MEAN if len(args) == reduction else None)
    return args


def _batches(node: Node) -> bool:
    return any(
        isinstance(atom, Batch)
        for arg in [*node.args, *node.kwargs.values()]
        for atom in (arg if isinstance(arg, list) else [arg])
    )


def _reading(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names for what it reads."""

    def atom(a: Atom) -> Atom:
        return Ref(names.get(a.name, a.name)) if isinstance(a, Ref) else a

    args: list[Arg] = [[atom(a) for a in g] if isinstance(g, list) else atom(g) for g in node.args]
    return msgspec.structs.replace(node, args=args)


def _named(node: Node, names: Mapping[str, str]) -> Node:
    node = _reading(node, names)
    return msgspec.structs.replace(node, name=names.get(node.name, node.name))
