"""One inference job from names and files: what `weft infer` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.plans.plan import Plan
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.run.serve import latency_s, serve
from weft.zoo.loading import load as load_model
from weft.zoo.loading import short_name


@dataclass(frozen=True)
class InferResult:
    plan: Plan
    repeat: int
    latency_s: float  # median, from loading a batch to its answer
    outputs: Tensor
    max_difference: float  # from the whole network's answer in this process
    timeline: Timeline


def infer(
    model: str,
    fleet: Fleet,
    strategy: str | None = None,
    *,
    plan: Plan | None = None,
    repeat: int = 10,
    batch: int | None = None,
    input_path: Path | None = None,
    output: Path | None = None,
    weights: Path | None = None,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    local: bool = False,
    netns: bool = False,
    join: Sequence[str] | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    deadline: float = 30.0,
    config: str | None = None,
) -> InferResult:
    """Answers `repeat` times; checks the last answer against the whole network in this process."""
    torch.manual_seed(0)
    module, example = load_model(model, input_shape, classes)
    module.eval()
    if not isinstance(example, Tensor):
        raise InputError(f"{model} takes {len(example)} inputs; weft infer feeds one")
    if weights is not None:
        _load_weights(module, weights)
    if batch is None:
        batch = plan.batch if plan is not None else 1
    x = _read_tensor(input_path) if input_path else _random_like(example, batch)
    with serve(
        module, x, fleet, strategy=strategy, plan=plan, batch=len(x), local=local, netns=netns, join=join,
        profile=profile, options=options, deadline=deadline, name=short_name(model), config=config,
    ) as net:  # fmt: skip
        answers = net.stream([x] * repeat)
        timeline, _ = net.timeline()
        ran = net.plan
    with torch.no_grad():
        whole = module(x)
    if output is not None:
        save_file({"output": answers[-1].contiguous()}, output)
    difference = float((answers[-1] - whole).abs().max())
    return InferResult(ran, repeat, latency_s(timeline), answers[-1], difference, timeline)


def _random_like(example: Tensor, batch: int) -> Tensor:
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")
    shape = (batch, *example.shape[1:])
    if example.is_floating_point():
        return torch.rand(shape)
    return torch.zeros(shape, dtype=example.dtype)


def _read_tensor(path: Path) -> Tensor:
    tensors = _read(path, "--input")
    if len(tensors) != 1:
        raise InputError(f"--input {path} holds {len(tensors)} tensors; it must hold one")
    return next(iter(tensors.values()))


def _read(path: Path, option: str) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"{option} {path}: there is no such file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{option} {path} is not a safetensors file: {error}") from None


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(_read(path, "--weights"))
    except RuntimeError as error:
        raise InputError(f"--weights {path} are not of this network: {error}") from None
