"""One inference job from names and files: what `weft infer` does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

from weft.data.trees import count_of, mapped
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture.signature import call_of
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.program.timeline import Timeline
from weft.runtime.run.launch import Place
from weft.runtime.run.measuring.survey import Say
from weft.runtime.run.serve import Service, latency_s, open_service
from weft.runtime.run.train import OnLoss
from weft.runtime.wire.limits import memory_bytes
from weft.stored import tensors_of
from weft.zoo.loading import Example, short_name
from weft.zoo.loading import load as load_model


@dataclass(frozen=True)
class InferResult:
    """What `weft infer` found out."""

    plan: Plan
    repeat: int
    # Median, from loading a batch to its answer; if the devices that know it are lost, time by answers.
    latency_s: float
    outputs: Any  # what the network returns
    max_difference: float  # from the whole network's answer in this process
    timeline: Timeline
    events: list[dict[str, Any]]  # lost devices, and what was done about them


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
    patience: float = 1.0,
    on_loss: OnLoss = "recover",
    config: str | None = None,
    group: str = "weft",
    objective: Objective = "time",
    measure: bool = True,
    say: Say = lambda text: None,
) -> InferResult:
    """Answers `repeat` times; checks the last answer against the whole network in this process.

    With `on_loss` "recover" a lost device is left out, and requests without an answer are asked again.
    """
    torch.manual_seed(0)
    module, example = load_model(model, input_shape, classes)
    module.eval()
    if weights is not None:
        _load_weights(module, weights)
    if batch is None:
        batch = plan.batch if plan is not None else 1
    x = _read_sample(input_path, example) if input_path else _random_like(example, batch)
    service = Service(
        place=Place(local, netns, tuple(join or ()), group=group, config=config), strategy=strategy,
        plan=plan, batch=count_of(x), profile=profile, options=options or {}, deadline=deadline,
        patience=patience, on_loss=on_loss, name=short_name(model),
        objective=objective, measure=measure, say=say,
    )  # fmt: skip
    with open_service(module, x, fleet, service) as net:
        begin = time.monotonic()
        answers = net.stream([x] * repeat)
        on_average = (time.monotonic() - begin) / repeat
        timeline, _ = net.timeline()
        ran, events = net.plan, net.events
    args, kwargs = call_of(x)
    with torch.no_grad():
        whole = _tensors(module(*args, **kwargs))
    answer = _tensors(answers[-1])
    if output is not None:
        save_file({name: tensor.contiguous() for name, tensor in answer.items()}, output)
    difference = max(
        float((answer[name].double() - whole[name].double()).abs().max()) for name in whole
    )
    latency = latency_s(timeline) or on_average
    return InferResult(ran, repeat, latency, answers[-1], difference, timeline, events)


def _random_like(example: Example, batch: int) -> Any:
    """Random samples of the example's form. Floats are drawn; integers and masks are the example's own."""
    if batch < 1:
        raise InputError(f"batch {batch} is not allowed; it must be at least 1")

    def draw(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return torch.rand(batch, *tensor.shape[1:], dtype=tensor.dtype)
        return torch.cat([tensor] * -(-batch // len(tensor)))[:batch]

    return mapped(draw, example)


def _read_sample(path: Path, example: Example) -> Any:
    """The tensors of a file in the form of the example. Their names are the keywords, or 0, 1, ..."""
    tensors = _read(path, "--input")
    if isinstance(example, Tensor):
        if len(tensors) != 1:
            raise InputError(f"--input {path} holds {len(tensors)} tensors; it must hold one")
        return next(iter(tensors.values()))
    names = list(example) if isinstance(example, dict) else [str(i) for i in range(len(example))]
    if set(names) != set(tensors):
        raise InputError(
            f"--input {path} holds {', '.join(sorted(tensors))}; it must hold {', '.join(names)}"
        )
    if isinstance(example, dict):
        return {name: tensors[name] for name in names}
    return tuple(tensors[name] for name in names)


def _tensors(answer: Any) -> dict[str, Tensor]:
    """The tensors of an answer by the path to them; `output` if the answer is one tensor."""
    if isinstance(answer, Tensor):
        return {"output": answer}
    leaves, _ = tree_flatten_with_path(answer)
    return {
        ".".join(_step(key) for key in path): leaf
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    }


def _step(key: Any) -> str:
    """One step of a path in a tree: an index, a key of a dict, or the name of a field."""
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _read(path: Path, option: str) -> dict[str, Tensor]:
    return tensors_of(path, option, memory_bytes())


def _load_weights(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(_read(path, "--weights"))
    except RuntimeError as error:
        raise InputError(f"--weights {path} are not of this network: {error}") from None
