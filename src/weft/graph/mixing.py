"""Networks in which a sample's result depends on the other samples of its minibatch.

    mixing_of(graph, state, inputs)     # "aten.mean.dim in encoder"; "" if each sample is computed for itself

`x - x.mean(0)`, or attention between samples: a plan that cuts minibatches into pieces would compute another
result. Batch norms are not meant (planning/norms.py). The graph says where samples may meet: a value without
a place for each sample, an operator along that place. Only such a network is tried: its answers for some
samples together, and for the same samples in two pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.graph.execute import Runner, draw_by
from weft.graph.network import Arg, Atom, Graph, Node, refs
from weft.graph.operators.calls import RENEWED
from weft.graph.operators.record import Function
from weft.graph.operators.table import operator_named

PIECES = (1, 3)  # samples
_SHAPE_ONLY = (
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "new_",
)
_ALONG = frozenset(
    (
        *("roll", "flip", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff", "cat"),
        *(
            "softmax",
            "_softmax",
            "log_softmax",
            "_log_softmax",
            "logsumexp",
            "max",
            "min",
            "median",
        ),
        *("sort", "topk", "argsort", "gather", "scatter", "scatter_add", "scatter_reduce"),
        *("index_select", "index_add", "index_copy", "index_fill", "index", "index_put"),
        *("take_along_dim", "select_scatter", "slice_scatter"),
    )
)
_PRODUCTS = frozenset(("matmul", "bmm", "mm", "baddbmm", "einsum", "cdist"))
_ATTENTION = "scaled_dot_product_attention"


def mixing_of(graph: Graph, state: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> str:
    """Where samples meet, if the answers show it; "" otherwise. `inputs` are samples of the network."""
    nodes = [(node, layer.name) for layer in graph.layers for node in layer.nodes]
    for node, layer in nodes:
        at = operator_named(node.op).frequency
        if at is not None and node.args[at:][:1] == [True]:
            return f"scale_grad_by_freq of {node.op} in {layer}"  # only gradients show it
    place = next(_places(graph), "")
    if not place:
        return ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return place if _apart(graph, state, _distinct(inputs)) else ""


def _places(graph: Graph) -> Iterator[str]:
    """The operators at which samples may meet."""
    follows = set(graph.inputs)  # what is computed from the inputs' numbers
    for layer in graph.layers:
        for node in layer.nodes:
            base = node.op.split(".")[1] if node.op.startswith("aten.") else node.op
            if base.startswith(_SHAPE_ONLY) or not any(name in follows for name in refs(node)):
                continue
            follows.add(node.name)
            value = graph.values.get(node.name)
            if (value is not None and value.batch_dim is None) or _meets(
                graph, node, base, follows
            ):
                yield f"{node.op} in {layer.name}"


def _meets(graph: Graph, node: Node, base: str, follows: Collection[str]) -> bool:
    """Whether an operator may compute with several samples at once."""
    read = [graph.values[n] for n in refs(node) if n in follows and n in graph.values]
    numbers = {atom for arg in node.args for atom in _atoms(arg) if type(atom) is int}
    for value in read:
        rank, samples = len(value.shape), value.batch_dim
        if samples is None:
            return True
        if base in _ALONG and (base.startswith("index") or numbers & {samples, samples - rank}):
            return True
        if base in _PRODUCTS and len(read) > 1 and samples >= rank - 2:
            return True
        if base == _ATTENTION and samples >= rank - 2:
            return True
        if operator_named(node.op).recurrent and rank == 3:  # it may take the samples for steps
            return True
    return False


def _atoms(arg: Arg) -> list[Atom]:
    return arg if isinstance(arg, list) else [arg]


def _distinct(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As many samples as the pieces have. Numbers with a fraction are all different; whole numbers may be
    classes or words, so they stay as they are."""
    samples = {}
    for name, tensor in _with_numbers(inputs).items():
        rows = torch.stack([tensor[n % len(tensor)] for n in range(sum(PIECES))])
        if rows.is_floating_point():
            rows = rows * 1.25 + torch.randn_like(rows) / 4
        samples[name] = rows
    return samples


def _with_numbers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that have only a shape (of a network that is only planned) get numbers."""

    def filled(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        if tensor.is_floating_point():
            return torch.rand(tensor.shape, dtype=tensor.dtype) / 10
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    return {name: filled(tensor) for name, tensor in tensors.items()}


def _drawn_alike(function: Function, *args: Any, **kwargs: Any) -> Any:
    """In place of random numbers: the same for every piece. A permutation is a turn by one sample."""
    drawn = function(*args, **kwargs)
    if function is torch.ops.aten.randperm.default:
        return torch.arange(len(drawn), dtype=drawn.dtype).roll(1)
    return torch.full_like(drawn, 0.5) if drawn.is_floating_point() else torch.zeros_like(drawn)


def _changed(graph: Graph) -> set[str]:
    """The buffers that forward writes."""
    nodes = (node for layer in graph.layers for node in layer.nodes)
    return {refs(node)[0] for node in nodes if node.op == RENEWED}


@torch.no_grad()
def _apart(graph: Graph, state: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> bool:
    """Whether the answers in two pieces are other ones than together, in inference.

    Each begins with the same buffers: what a piece leaves in them for later minibatches is no answer
    (planning/exactness.py names it).
    """
    runner = Runner(graph.segment(0, len(graph.layers) - 1), _with_numbers(state))
    changed = _changed(graph)

    def answers(first: int, last: int) -> Mapping[str, Tensor]:
        own = runner.like({name: runner.state[name].clone() for name in changed})
        draw_by(own, _drawn_alike)
        rows = {name: tensor[first:last] for name, tensor in inputs.items()}
        return own.forward(rows, training=False)

    cut, count = PIECES[0], sum(PIECES)
    whole, left, right = answers(0, count), answers(0, cut), answers(cut, count)
    for name, tensor in whole.items():
        samples = graph.values[name].batch_dim
        if samples is None or not tensor.is_floating_point():
            continue
        pieces = torch.cat([left[name], right[name]], samples)
        size = float(tensor.abs().max()) or 1.0
        if not torch.allclose(tensor, pieces, rtol=1e-3, atol=1e-4 * size, equal_nan=True):
            return True
    return False
