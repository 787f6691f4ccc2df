"""From what a user gives as an optimizer to the record that devices get: names and numbers.

    read_optimizer("adamw", module, lr=1e-3, arguments={"betas": (0.9, 0.95)}, no_decay=True)
    read_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9), module)
    read_optimizer(torch.optim.Adam([{"params": module.head.parameters(), "lr": 1e-3}, ...]), module)

Everything that cannot run on other devices is refused here: classes that are not in torch.optim, closures,
settings that are no plain numbers, weights that do not belong to the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.optimizers.optimizer import (
    CLASSES,
    REFUSED,
    WITH_DECAY,
    Group,
    Optimizer,
    Value,
    arguments_of,
    check_arguments,
    optimizer_class,
)

Given = Optimizer | str | type[torch.optim.Optimizer] | partial[Any] | torch.optim.Optimizer
# Learning rates where neither the user nor a class of torch.optim says one.
RATES = {"sgd": 0.05, "momentum": 0.05, "adam": 0.001, "adamw": 0.001}
NO_DECAY = 1  # dimensions: norms and biases are vectors, everything else is larger


def read_optimizer(
    asked: Given,
    module: nn.Module,
    *,
    loss: nn.Module | None = None,
    lr: float | None = None,
    arguments: Mapping[str, object] | None = None,
    no_decay: bool = False,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    ema: float | None = None,
) -> Optimizer:
    """The record of an optimizer. `arguments` are those of its class; `no_decay` spares norms and biases."""
    if isinstance(asked, Optimizer):
        rule = asked if lr is None else replace(asked, lr=lr)
    elif isinstance(asked, torch.optim.Optimizer):
        if lr is not None or arguments:
            raise InputError(
                "this optimizer has its settings already: leave out lr and the other arguments"
            )
        rule = _of_instance(asked, module, loss)
    elif isinstance(asked, str):
        rule = _of_name(asked, lr)
    elif isinstance(asked, partial):
        if asked.args:
            raise InputError(
                f"optimizer {asked!r}: give its settings by name, as partial(torch.optim.SGD, lr=0.1)"
            )
        rule = _of_class(asked.func, dict(asked.keywords), lr)
    elif isinstance(asked, type):
        rule = _of_class(asked, {}, lr)
    else:
        raise InputError(
            f"optimizer {asked!r} is not allowed; give a name ({', '.join(CLASSES)}), a class of "
            "torch.optim, functools.partial of one, or an optimizer over the network's weights"
        )
    extra = {key: _plain(rule.name, key, value) for key, value in (arguments or {}).items()}
    if "lr" in extra:
        if lr is not None and extra["lr"] != lr:
            raise InputError(f"the learning rate is given twice: {lr} and {extra['lr']}")
        rule = replace(rule, lr=_rate(extra.pop("lr")))
    rule = replace(rule, arguments={**rule.arguments, **extra})
    if no_decay:
        rule = _without_decay(rule, module)
    _rate(rule.lr)
    rule = _with_limits(rule, clip_value, clip_norm, ema)
    weights = _weights(module, loss)
    rule.build(
        list(weights.values()), list(weights)
    )  # a wrong value is refused before anything starts
    return rule


def _of_name(name: str, lr: float | None) -> Optimizer:
    """By a name of the table; the other settings are those of its class of torch.optim."""
    name = name.lower()
    defaults = _defaults(name)
    rate = lr if lr is not None else RATES.get(name, defaults.get("lr"))
    return Optimizer(name, _rate(rate), weight_decay=_decay(name))


def _of_class(make: object, keywords: dict[str, object], lr: float | None) -> Optimizer:
    name = next((n for n in CLASSES if n != "momentum" and _class(n) is make), None)
    if name is None:
        spelled = getattr(make, "__name__", str(make))
        if spelled.lower() in REFUSED:
            optimizer_class(spelled.lower())
        raise InputError(
            f"optimizer {spelled} is no class of torch.optim; devices build only {', '.join(CLASSES)}"
        )
    settings = {key: _plain(name, key, value) for key, value in keywords.items()}
    rate = settings.pop("lr", _defaults(name).get("lr"))
    return Optimizer(
        name, _rate(rate if lr is None else lr), weight_decay=_decay(name), arguments=settings
    )


def _decay(name: str) -> float:
    """The decay of a class of torch.optim: adamw has 0.01, and what is not given keeps that."""
    default = _defaults(name).get("weight_decay")
    return float(default) if name in WITH_DECAY and isinstance(default, int | float) else 0.0


def _of_instance(
    optimizer: torch.optim.Optimizer, module: nn.Module, loss: nn.Module | None
) -> Optimizer:
    """An optimizer over the network's weights: its groups by the names of their weights."""
    if any(_has_stepped(kept) for kept in optimizer.state.values()):
        raise InputError(
            f"this {type(optimizer).__name__} has already made steps; the devices would begin without its "
            "memory. Make a new one, or resume the run from its folder"
        )
    base = _of_class(type(optimizer), {}, None)
    names: dict[int, list[str]] = {}
    for name, weight in _tied_weights(module, loss):
        names.setdefault(id(weight), []).append(name)
    groups = []
    for number, row in enumerate(optimizer.param_groups):
        for place, weight in enumerate(row["params"]):
            if id(weight) not in names:
                raise InputError(
                    f"optimizer: weight {place} of group {number}, shape {tuple(weight.shape)}, is no weight "
                    "of this network; make the optimizer over the network's own parameters"
                )
        allowed = arguments_of(base.name)
        settings = {k: _plain(base.name, k, v) for k, v in row.items() if k in allowed}
        members = tuple(name for weight in row["params"] for name in names[id(weight)])
        groups.append(Group(members, settings))
    held = {name for group in groups for name in group.names}
    untouched = tuple(n for tied in names.values() for n in tied if n not in held)
    if len(groups) == 1 and not untouched:
        settings = dict(groups[0].arguments)
        return replace(base, lr=_rate(settings.pop("lr")), arguments=settings)
    return replace(
        base, lr=_rate(groups[0].arguments["lr"]), groups=tuple(groups), untouched=untouched
    )


def _with_limits(
    rule: Optimizer, clip_value: float | None, clip_norm: float | None, ema: float | None
) -> Optimizer:
    for name, limit in (("clip_value", clip_value), ("clip_norm", clip_norm)):
        if limit is not None and not 0 < limit < float("inf"):
            raise InputError(f"{name} {limit} is not allowed; it must be above 0")
    if clip_value and clip_norm:
        raise InputError(f"clip_value {clip_value} and clip_norm {clip_norm}: choose one of them")
    if ema is not None and not 0 < ema < 1:
        raise InputError(f"ema {ema} is not allowed; it must be between 0 and 1, such as 0.999")
    return replace(
        rule,
        clip_value=clip_value or rule.clip_value,
        clip_norm=clip_norm or rule.clip_norm,
        ema=ema or rule.ema,
    )


def _has_stepped(kept: Mapping[str, Any]) -> bool:
    return kept.get("momentum_buffer") is not None or float(kept.get("step", 0)) > 0


def _without_decay(rule: Optimizer, module: nn.Module) -> Optimizer:
    if rule.groups:
        raise InputError(
            "no_decay is for an optimizer without groups of its own; give one or the other"
        )
    check_arguments(rule.name, {"weight_decay": 0.0})
    spared = tuple(
        name
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.dim() <= NO_DECAY
    )
    return replace(rule, groups=(Group(spared, {"weight_decay": 0.0}),) if spared else ())


def _weights(module: nn.Module, loss: nn.Module | None) -> dict[str, Tensor]:
    """The trained weights by name, each once."""
    known: dict[int, tuple[str, Tensor]] = {}
    for name, weight in _tied_weights(module, loss):
        if weight.requires_grad:
            known.setdefault(id(weight), (name, weight))
    return dict(known.values())


def _tied_weights(module: nn.Module, loss: nn.Module | None) -> list[tuple[str, Tensor]]:
    """Every weight by every name that it has in a captured graph (`state_of`)."""
    pairs: list[tuple[str, Tensor]] = list(module.named_parameters(remove_duplicate=False))
    if loss is not None:
        pairs += [(f"loss_{name}", weight) for name, weight in loss.named_parameters()]
    return pairs


def _defaults(name: str) -> dict[str, object]:
    keys = inspect.signature(optimizer_class(name)).parameters.values()
    return {key.name: key.default for key in keys if key.default is not inspect.Parameter.empty}


def _class(name: str) -> type[torch.optim.Optimizer] | None:
    try:
        return optimizer_class(name)
    except InputError:  # this torch has no such class
        return None


def _rate(value: object) -> float:
    number = float(value) if isinstance(value, int | float) else float("nan")
    if not 0 < number < 1e6:
        raise InputError(f"learning rate {value} is not allowed; it must be above 0")
    return number


def _plain(name: str, key: str, value: object) -> Value:
    """A setting as plain data; InputError where it is something else."""
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, list):
        value = tuple(value)
    plain = value is None or isinstance(value, bool | int | float | str)
    if isinstance(value, tuple) and all(v is None or type(v) in (int, float) for v in value):
        return tuple(None if v is None else float(v) for v in value)
    if not plain:
        raise InputError(
            f"optimizer {name}: {key} = {value!r} is not allowed; only numbers, words, True, False and None "
            "are sent to devices"
        )
    return value  # type: ignore[return-value]
