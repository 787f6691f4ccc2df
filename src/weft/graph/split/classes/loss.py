"""The user's loss over the classes of one peer: the same rule, with fewer classes to tell apart.

    check_class_loss(loss, classes=10)         # InputError where it has no such meaning
    loss_over(loss, [2, 3, 4])                 # for logits and columns of these three classes

A peer has the logits of its own classes alone, numbered from 0. A loss means the same there if it treats all
classes alike (renumbering logits and targets together changes nothing) and takes any number of them. Weights
of classes are the one exception that is known: a peer uses those of its own classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.graph.capture.module import capture_loss
from weft.graph.network import Graph, Value

Loss = nn.Module | Callable[[Tensor, Tensor], Tensor]
_WEIGHTED = (nn.CrossEntropyLoss, nn.NLLLoss)
_SAMPLES = 24


def loss_over(loss: Loss, classes: Sequence[int]) -> Loss:
    """The loss for a network that gives the logits of these classes, in this order."""
    weight = _weights(loss)
    return loss if weight is None else _with_weights(loss, weight[list(classes)])


def check_class_loss(loss: Loss, classes: int, held: Iterable[int] = ()) -> None:
    """InputError, in words, for a loss that some of the classes cannot have for themselves.

    `held`: how many classes peers have.
    """
    weight = _weights(loss)
    if weight is not None and len(weight) != classes:
        raise _refused(loss, f"it has {len(weight)} weights of classes, and there are {classes}")
    alike = loss if weight is None else _with_weights(loss, None)
    for count in sorted({classes, *held}):
        _check_alike(loss, alike, count)
    _check_samples(loss, alike, classes)


def _check_alike(loss: Loss, alike: Loss, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = torch.rand(_SAMPLES, classes, generator=generator)
    target = torch.arange(_SAMPLES) % classes
    expected = _value(loss, alike, logits, target)
    for _ in range(4):
        order = torch.randperm(classes, generator=generator)  # new number -> old number
        number = order.argsort()
        value = _value(loss, alike, logits[:, order], number[target])
        if not torch.allclose(value, expected, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise _refused(
                loss,
                "it treats some classes otherwise than others, and a peer numbers its own from 0",
            )


def _check_samples(loss: Loss, alike: Loss, classes: int) -> None:
    """The loss of a minibatch must be a mean or a sum over its samples."""
    values = {"x": Value((1, classes), "float32")}
    graph = Graph("logits", ["x"], "x", [], values, {})
    record = capture_loss(graph, alike, torch.arange(_SAMPLES) % classes).loss
    if record is not None and record.over != "samples":
        raise _refused(loss, "it is no mean or sum over samples")


def _value(loss: Loss, alike: Loss, logits: Tensor, target: Tensor) -> Tensor:
    try:
        with torch.no_grad():
            return alike(logits, target)
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        why = f"it does not work with {logits.shape[1]} classes ({said})"
        raise _refused(loss, why) from error


def _weights(loss: Loss) -> Tensor | None:
    weight = loss.weight if isinstance(loss, nn.Module) and type(loss) in _WEIGHTED else None
    return weight if isinstance(weight, Tensor) else None


def _with_weights(loss: Loss, weight: Tensor | None) -> Loss:
    changed = copy.deepcopy(loss)
    assert isinstance(changed, nn.Module)
    changed.register_buffer("weight", weight)
    return changed


def _refused(loss: Loss, why: str) -> InputError:
    name = getattr(loss, "__name__", type(loss).__name__)
    return InputError(
        f"the loss {name} cannot be used where each peer has some of the classes: {why}. Use a loss that "
        "compares a sample's logits with its class and treats all classes alike, such as cross-entropy"
    )
