"""Models that nobody here wrote: are they captured, planned, and do they compute the same when split?

    python benchmarks/models.py                  the 55 models of a folder (WEFT_MODELS, or ../shared/models)
    python benchmarks/models.py --more           the 25 models of benchmarks/more_models.py
    python benchmarks/models.py --other          the 40 models of benchmarks/other_models.py
    python benchmarks/models.py gpt2 detr        those whose names contain one of these words

A model counts if one of its variants passes all of this:

- it is captured, in at least two layers;
- chain, hiertrain+ and edgemove+ plan it for three unequal devices;
- split into three parts it gives the answer of the eager module in evaluation mode (1e-5);
- 5 steps of training in three parts give the losses and weights of one eager process (1e-5, dropout off).
  If they do not in float32, the same limit in float64 decides: rounding that the network amplifies (a batch
  norm of 4 numbers) is then 1e-9 of what it was, a wrong gradient is as large as before. The line says so.

The parts run in one process with the nodes' own interpreter; their messages are packed as on a link. If the
network itself draws random numbers, the eager process draws the same. A refusal is shown in one line.
It needs transformers, timm, torchvision, segmentation-models-pytorch and einops; what is missing is skipped.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from weft.errors import InputError, WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import Captured, capture_loss, capture_signed, state_of
from weft.graph.capture.signature import Signature, call_of
from weft.graph.network import Graph
from weft.graph.operators.table import operator_named
from weft.graph.optimizers.optimizer import Optimizer
from weft.loom.woven import execute
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Plan, Shard
from weft.program.lower.lower import lower
from weft.program.validate import validate

STEPS, RATE, SEED, CLOSE = 5, 0.01, 3, 1e-5
OWN_LISTS = (
    "more",
    "other",
)  # more_models.py and other_models.py, whose losses take what the module returns
STRATEGIES = ("chain", "hiertrain+", "edgemove+")
FLEET = Fleet(
    (
        Device("phone", tier="device", gflops=1.0, data=True),
        Device("box", tier="edge", gflops=8.0),
        Device("server", tier="cloud", gflops=30.0),
    ),
    (
        Link(("phone", "box"), 100.0, 100.0, 1.0),
        Link(("phone", "server"), 20.0, 20.0, 5.0),
        Link(("box", "server"), 200.0, 200.0, 2.0),
    ),
)
Variant = tuple[str, nn.Module, Any, Any, Any]


class Diverges(WeftError):
    """The eager network's own loss is not finite: the rate is too high for it."""


class Differs(WeftError):
    """A split network computes something else."""


def main(words: list[str]) -> int:
    """Prints one line for each model; the exit code is 1 if one computes something else or fails. A refusal
    is no failure."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    builders = _builders(words)
    words = [word for word in words if not word.startswith("--")]
    names = [n for n in builders if not words or any(word in n for word in words)]
    passed, skipped, wrong = 0, 0, 0
    for name in names:
        text = _tried(builders[name])
        passed += text.startswith("passes")
        skipped += text.startswith("skipped")
        wrong += text.startswith(("DIFFERS", "FAILS"))
        print(f"{name:34} {text}", flush=True)
    print(f"{passed} of {len(names)} pass" + (f", {skipped} are skipped" if skipped else ""))
    return 1 if wrong else 0


def _builders(words: list[str]) -> Mapping[str, Callable[[], list[Variant]]]:
    """The models by name. Raises SystemExit with words if their file is not there."""
    here = Path(__file__).resolve().parent
    folder = Path(os.environ.get("WEFT_MODELS", here.parent.parent / "shared" / "models"))
    for name in OWN_LISTS:
        if f"--{name}" in words:
            sys.path.insert(0, str(here))
            listed: Mapping[str, Callable[[], list[Variant]]]
            listed = importlib.import_module(f"{name}_models").MODELS
            return listed
    if not (folder / "models.py").exists():
        print(f"skipped: there is no {folder / 'models.py'}; set WEFT_MODELS to its folder")
        raise SystemExit(0)
    sys.path.insert(0, str(folder))
    from models import MODELS as others

    loaded: Mapping[str, Callable[[], list[Variant]]] = others
    return loaded


def _tried(build: Callable[[], list[Variant]]) -> str:
    """What became of a model: its first variant that passes, or why the last one does not."""
    torch.manual_seed(0)
    start, text = time.process_time(), ""
    try:
        variants = build()
    except (ImportError, RuntimeError) as error:
        return f"skipped: it cannot be built here ({' '.join(str(error).split())[:120]})"
    for variant in variants:
        try:
            text = f"passes ({variant[0]}): {_checked(variant)}"
            break
        except InputError as error:
            text = f"refused ({variant[0]}): {' '.join(str(error).split())[:300]}"
        except Differs as error:
            text = f"DIFFERS ({variant[0]}): {error}"
        except Exception as error:
            text = (
                f"FAILS ({variant[0]}): {type(error).__name__} {' '.join(str(error).split())[:300]}"
            )
    return f"{text}; {time.process_time() - start:.0f} s of CPU time"


def _checked(variant: Variant) -> str:
    """All checks of one variant; the figures in words."""
    _, module, inputs, target, loss = variant
    without_dropout(module)
    answering = capture_signed(module, inputs, mode="infer")
    layers = len(answering.graph.layers)
    if layers < 2:
        raise InputError("it has one layer, so it cannot be split")
    off = _answers(module, inputs, *answering)
    apart = _of_first(loss)
    trained = _captured(module, inputs, target, apart)
    task = make_task(
        derive_profile(trained.graph, FLEET), FLEET, batch=_batch(target), graph=trained.graph
    )
    for strategy in STRATEGIES:
        decide(strategy, task)
    note = ""
    try:
        worst, crossing = _trained(module, inputs, target, apart, trained)
    except Differs as single:
        double = copy.deepcopy(module).double(), *_doubled((inputs, target)), apart
        worst, crossing = _trained(*double, _captured(*double))
        note = f" in float64 (float32: {single})"
    return (
        f"{layers} layers, answers {off:.0e} off, training {worst:.0e} off{note}, "
        f"{crossing} values cross"
    )


def _captured(module: nn.Module, inputs: Any, target: Any, loss: Any) -> Captured:
    """The network for training, with its loss."""
    graph, signature = capture_signed(module, inputs, mode="train")
    return Captured(capture_loss(graph, loss, target, signature), signature)


def _doubled(tensors: Any) -> Any:
    return tree_map(lambda t: t.double() if t.is_floating_point() else t, tensors)


def without_dropout(module: nn.Module) -> None:
    """Sets every probability of dropout to 0: in modules of torch, and in attributes of others."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name, value in vars(part).items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)


def _of_first(loss: Any) -> Any:
    """The loss of a module that returns a tree, where the list's loss expects its first tensor."""
    if getattr(loss, "__module__", "") in [f"{name}_models" for name in (*OWN_LISTS, "tiny")]:
        return loss

    def apart(output: Any, target: Any) -> Tensor:
        if not isinstance(output, Tensor):
            chosen = getattr(output, "logits", None)
            output = chosen if chosen is not None else tree_leaves(output)[0]
        result: Tensor = loss(output, target)
        return result

    return apart


def _answers(module: nn.Module, inputs: Any, graph: Graph, signature: Signature) -> float:
    """The largest difference of an answer in three parts from that of the eager module."""
    plan = _in_three(graph, _batch(inputs), "infer")
    data = {n: t for n, t in signature.named(inputs).items() if n in graph.inputs}
    result = execute(
        lower(plan), graph, state_of(module), lambda _: (data, {}), 1, Optimizer(), SEED
    )
    args, kwargs = call_of(inputs)
    _draw_alike(graph, SEED * 1_000_003 * 1_009)
    with torch.no_grad():
        wanted = copy.deepcopy(module).eval()(*args, **kwargs)
    (values,) = result.answers.values()
    leaves = [t for t in tree_leaves(signature.rebuilt(values)) if isinstance(t, Tensor)]
    eager = [t for t in tree_leaves(wanted) if isinstance(t, Tensor)]
    return max(_apart(a, b, "an answer") for a, b in zip(leaves, eager, strict=False))


def _trained(
    module: nn.Module, inputs: Any, target: Any, loss: Any, captured: Captured
) -> tuple[float, int]:  # fmt: skip
    """The result of `_compared`, at a lower rate if the network diverges in one process too."""
    try:
        return _compared(module, inputs, target, loss, captured, RATE)
    except Diverges:
        return _compared(module, inputs, target, loss, captured, RATE / 100)


def _compared(
    module: nn.Module, inputs: Any, target: Any, loss: Any, captured: Captured, rate: float
) -> tuple[float, int]:  # fmt: skip
    """(the largest difference from one eager process after 5 steps, how many values cross the two cuts)."""
    graph, signature = captured
    plan = _in_three(graph, _batch(target), "train")
    program = lower(plan)
    validate(program)
    assert graph.loss is not None
    x = {n: t for n, t in signature.named(inputs).items() if n in graph.inputs}
    y = dict(zip(graph.loss.targets, tree_leaves(target), strict=True))
    state = state_of(module)

    def data(step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {n: t.roll(step, 0) for n, t in x.items()}, {
            n: t.roll(step, 0) for n, t in y.items()
        }

    result = execute(program, graph, state, data, STEPS, Optimizer("sgd", rate), SEED)
    if result.odd_bytes:
        raise Differs(result.odd_bytes[0])
    eager = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD([p for p in eager.parameters() if p.requires_grad], rate)
    worst = 0.0
    for step in range(STEPS):
        args, kwargs = call_of(tree_map(lambda t: t.roll(step, 0), inputs))  # noqa: B023
        optimizer.zero_grad()
        _draw_alike(graph, (SEED * 1_000_003 + step) * 1_009)
        value = loss(eager(*args, **kwargs), tree_map(lambda t: t.roll(step, 0), target))  # noqa: B023
        if not torch.isfinite(value):
            raise Diverges(f"the loss of step {step} is {value.item()}")
        value.backward()
        optimizer.step()
        ours = torch.tensor(result.losses[step], dtype=torch.float64)
        worst = max(worst, _apart(ours, value, f"the loss of step {step}"))
    for name, tensor in state_of(eager).items():
        if name in graph.state:
            worst = max(worst, _apart(result.state[name], tensor, name))
    return worst, sum(len(graph.cut(s.layers[0])) for s in plan.shards[1:])


def _in_three(graph: Graph, batch: int, mode: Any) -> Plan:
    """A plan of three parts of equally many layers, or of two."""
    names, layers = [d.name for d in FLEET.devices], len(graph.layers)
    parts = min(3, layers)
    ends = [layers * n // parts for n in range(parts + 1)]
    shards = tuple(Shard(names[n], (ends[n], ends[n + 1] - 1)) for n in range(parts))
    return Plan(
        strategy="by hand", model=graph.name, batch=batch, mode=mode, shards=shards, source="phone",
        fleet=FLEET, profile=derive_profile(graph, FLEET),
    )  # fmt: skip


def _draw_alike(graph: Graph, seed: int) -> None:
    """Lets the eager process draw what the network's one random operator draws."""
    drawing = [
        node.name
        for layer in graph.layers
        for node in layer.nodes
        if operator_named(node.op).always_random
    ]
    if drawing:
        salt = zlib.crc32(drawing[0].encode()) | 1
        torch.manual_seed((seed * 1_000_003 + salt) & 0x7FFF_FFFF_FFFF_FFFF)


def _apart(a: Tensor, b: Tensor, what: str) -> float:
    """The difference of two tensors, relative where they are above 1. Raises Differs if it is too large."""
    if a.shape != b.shape:
        raise Differs(f"{what} has shape {tuple(a.shape)}, not {tuple(b.shape)}")
    if not a.numel() or not a.is_floating_point():
        return 0.0
    off = (a.detach().double() - b.detach().double()).abs().max().item()
    off /= max(1.0, b.detach().abs().max().item())
    if not off <= CLOSE:
        raise Differs(f"{what} is {off:.1e} off")
    return off


def _batch(tensors: Any) -> int:
    return len(tree_leaves(tensors)[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
