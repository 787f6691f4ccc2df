"""Gradients that are made by hand. torch.export sees what forward computes, and devices compute gradients
from that.

    with watched_gradients() as own:     # own.functions: classes of torch.autograd.Function, and their lines
        torch.export.export(...)
    refusal_of_gradients(module, example, "net", own)      # "" if training a split network learns the same

An `autograd.Function` may have a backward pass that is no derivative of its forward pass. So each that is met
is tried with numbers: it is refused if the gradients differ. Hooks that see gradients are refused, because
they would not run on the devices. Two things that are harmless are set right: `checkpoint` with its old
implementation computes what its function computes, and `inference_mode` counts as `no_grad`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from weft.graph.capture.modes import in_mode
from weft.graph.capture.python_state import Numbers, left_as_it_was, without_numbers
from weft.graph.capture.rewrite import place_of
from weft.graph.capture.signature import Sample, grown

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"  # torchvision is no part of torch
_OWN = str(Path(__file__).parent)


class OwnGradients:
    """What was met while a module was exported: classes with a backward pass, and hooks, with their lines."""

    def __init__(self) -> None:
        self.functions: dict[type, str] = {}
        self.hooks: list[str] = []


@contextmanager
def watched_gradients() -> Iterator[OwnGradients]:
    """Notes the autograd functions and hooks of tensors that forward uses."""
    own = OwnGradients()

    def met(kind: type, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if kind is CheckpointFunction:
            function, _keeps_random_state, *inputs = args
            return function(*inputs)
        own.functions.setdefault(kind, user_line())
        return call(*args)

    def hooked(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Any:
        own.hooks.append(user_line())
        return plain_hook(tensor, hook)

    tensors: Any = Tensor
    plain_hook = tensors.register_hook
    tensors.register_hook = hooked
    try:
        with _applied_by(met), _inference_as_no_grad():
            yield own
    finally:
        tensors.register_hook = plain_hook


def refusal_of_gradients(module: nn.Module, example: Sample, label: str, own: OwnGradients) -> str:
    """Why a split network would learn something else; "" if it would not."""
    hook = _hook_of(module)
    if hook or own.hooks:
        where = f"{hook} has a hook" if hook else f"a hook is set there ({own.hooks[0]})"
        return (
            f"{label} cannot be captured for training: {where} that sees gradients, and it would not run on "
            "the devices. Remove it; --clip-value and --clip-norm limit gradients, 3 * x - 2 * x.detach() "
            "makes a gradient three times as large"
        )
    tried = bool(own.functions) and not without_numbers(module)
    wrong = _with_other_gradients(module, example) if tried else set()
    for kind in own.functions:
        if kind in wrong:
            return (
                f"{label} cannot be captured for training ({own.functions[kind]}): the gradient of "
                f"{kind.__name__}.backward is not that of its forward, and devices compute gradients from "
                "forward alone. Write it with detach: x + (f(x) - x).detach() lets a gradient through, "
                "2 * x.detach() - x turns it"
            )
    return ""


def refusal_of_weights(program: ExportedProgram, label: str) -> str:
    """Why a weight that forward reads would not be trained there: it is not the module's own, so the graph
    would hold its numbers of now. A loss that reads the network's weights is the common case."""
    constants = program.constants
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    own = {
        spec.target: next(n for n in program.graph.nodes if n.name == name)
        for name, spec in kinds.items()
        if spec.kind == InputKind.CONSTANT_TENSOR and spec.target is not None
    }
    places = {
        _memory(tensor): target
        for target, tensor in constants.items()
        if target in own and isinstance(tensor, Tensor) and tensor.is_floating_point()
    }
    places.pop(0, None)
    for weight in (o for o in gc.get_objects() if type(o) is nn.Parameter) if places else ():
        target = places.get(_memory(weight)) if weight.requires_grad else None
        if target is not None:
            reader = next(iter(own[target].users), own[target])
            return (
                f"{place_of(reader, label)}: reads a weight of shape {tuple(weight.shape)} there that is not "
                "its own, so it would not be trained there. Keep modules in an nn.ModuleList. In place of a "
                "loss that reads the network's weights, set the optimizer's weight_decay, or return the "
                "term beside the network's output with a row for each sample"
            )
    return ""


def _memory(tensor: Tensor) -> int:
    """Where a tensor's numbers are; 0 if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a tensor around another one
        return 0


def user_line() -> str:
    """The innermost line that is neither torch's nor Weft's: file name and line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OWN, "<")) and "/contextlib" not in file:
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def _hook_of(module: nn.Module) -> str:
    """The first part or parameter of a module that has a hook for gradients."""
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            return name or "the module"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return name
    return ""


@contextmanager
def _applied_by(met: Callable[[type, Callable[..., Any], tuple[Any, ...]], Any]) -> Iterator[None]:
    """`met` gets each call of an autograd function: its class, the call itself and its arguments. A bound
    `Function.apply` that the user's module kept is seen too, because torch looks up the last step anew."""
    base: Any = _SingleLevelFunction

    def apply(kind: type, *args: Any) -> Any:
        return met(kind, super(base, kind).apply, args)

    base.apply = classmethod(apply)
    try:
        yield
    finally:
        del base.apply


@contextmanager
def _inference_as_no_grad() -> Iterator[None]:
    """torch.export notes `no_grad`, but not `inference_mode`."""
    kind: Any = torch.inference_mode
    enter, leave = kind.__enter__, kind.__exit__

    def entered(self: Any) -> None:
        self.without_gradients = torch.no_grad() if self.mode else None
        if self.without_gradients is None:
            enter(self)
        else:
            self.without_gradients.__enter__()

    def left(self: Any, *error: Any) -> None:
        if self.without_gradients is None:
            leave(self, *error)
        else:
            self.without_gradients.__exit__(*error)

    kind.__enter__, kind.__exit__ = entered, left
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = enter, leave


def _with_other_gradients(module: nn.Module, example: Sample) -> set[type]:
    """The autograd functions whose gradient is not that of their forward pass, tried with the numbers of an
    eager run."""
    wrong: set[type] = set()

    def met(kind: type, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if kind not in wrong and kind is not CheckpointFunction and not _alike(kind, call, args):
            wrong.add(kind)
        return call(*args)

    args, kwargs = grown(example, 3)
    numbers = Numbers(module)
    with (
        torch.random.fork_rng(devices=[]), torch.enable_grad(), in_mode(module, "train"),
        left_as_it_was(module),
    ):  # fmt: skip
        try:
            with _applied_by(met):
                module(*args, **kwargs)
        finally:
            numbers.restore()
    return wrong


class _NoContext:
    """Takes what an autograd function's forward pass keeps for its backward pass, and forgets it."""

    def __init__(self, inputs: int) -> None:
        self.needs_input_grad = (True,) * inputs

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def _alike(kind: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether an autograd function has the gradient of its forward pass."""
    has_context = kind.setup_context is _SingleLevelFunction.setup_context

    def forward(*inputs: Any) -> Any:
        return kind.forward(*([_NoContext(len(inputs))] if has_context else []), *inputs)

    try:
        own, derived = _gradients(call, args), _gradients(forward, args)
    except Exception:  # it cannot be tried, so nobody knows
        return False
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(own, derived, strict=True)
    )


def _gradients(call: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """The gradients of the inputs, for random gradients of the results."""
    learned = [isinstance(a, Tensor) and a.requires_grad for a in args]
    leaves = [
        a.detach().clone().requires_grad_() if some else a
        for a, some in zip(args, learned, strict=True)
    ]
    wanted = [leaf for leaf, some in zip(leaves, learned, strict=True) if some]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # clones, because the function may change its inputs in place
        results = call(*(a.clone() if isinstance(a, Tensor) else a for a in leaves))
        floating = [
            t for t in tree_leaves(results) if isinstance(t, Tensor) and t.is_floating_point()
        ]
        factors = [torch.randn_like(t) for t in floating]
    total = [(t * g).sum() for t, g in zip(floating, factors, strict=True) if t.requires_grad]
    if not total or not wanted:
        return [torch.zeros_like(leaf) for leaf in wanted]
    gradients = torch.autograd.grad(torch.stack(total).sum(), wanted, allow_unused=True)
    return [
        torch.zeros_like(leaf) if g is None else g
        for leaf, g in zip(wanted, gradients, strict=True)
    ]
