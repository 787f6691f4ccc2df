"""Networks with several inputs and outputs, on three real processes: the same as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import weft
from weft.data.trees import rows_of
from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture.module import capture, capture_signed
from weft.graph.capture.signature import call_of
from weft.plans.derive import graph_profile
from weft.plans.profile import DeviceTimes, Profile
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.feeds import source_of

STEPS, BATCH, SAMPLES, LENGTH = 6, 8, 24, 6
THREE = [
    ("chain", {"devices": "pi,nuc,cloud", "micro_batches": 2}),
    ("hiertrain+", {"codecs": "none"}),
    ("edgemove+", {"in_flight": 1}),
]


class Two(nn.Module):
    """Two inputs; the second one is read late, so that it crosses cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8 + 3, 4)

    def forward(self, a: Tensor, target: Tensor) -> Tensor:  # an input may have any name
        hidden = torch.tanh(self.b(torch.relu(self.a(a))))
        return self.c(torch.cat([hidden, target], 1))


class Attention(nn.Module):
    """Token numbers and a boolean mask that every block reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.queries = nn.ModuleList(nn.Linear(8, 24) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor, *, mask: Tensor) -> dict[str, Any]:
        x = self.embed(tokens)
        for layer in self.queries:
            q, k, v = layer(x).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(1))
        kept = x * mask.unsqueeze(-1)
        pooled = kept.sum(1) / mask.sum(1, keepdim=True)
        return {"logits": self.head(pooled), "hidden": x, "mask": mask}


class Seen(NamedTuple):
    label: Tensor
    box: Tensor
    spare: Tensor


class Heads(nn.Module):
    """Three outputs of different depths; the loss reads two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.more = nn.Linear(5, 8), nn.Linear(8, 8)
        self.label, self.box, self.spare = nn.Linear(8, 4), nn.Linear(8, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Seen:
        early = torch.relu(self.body(x))
        late = torch.tanh(self.more(early))
        return Seen(self.label(late), self.box(early), self.spare(late))


def plain(output: Any, target: Any) -> Tensor:
    return functional.cross_entropy(output, target)


def of_dict(output: Any, target: Any) -> Tensor:
    return functional.cross_entropy(output["logits"], target)


def of_two(output: Any, target: Any) -> Tensor:
    label, box = target
    return functional.cross_entropy(output.label, label) + functional.mse_loss(output.box, box)


class Subject(NamedTuple):
    make: Callable[[], nn.Module]
    samples: Any
    targets: Any
    loss: Callable[[Any, Any], Tensor]


def subjects() -> dict[str, Subject]:
    g = torch.Generator().manual_seed(3)
    label = torch.randint(4, (SAMPLES,), generator=g)
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES, 1), generator=g)
    tokens = {
        "tokens": torch.randint(13, (SAMPLES, LENGTH), generator=g),
        "mask": torch.arange(LENGTH) < lengths,
    }
    x = torch.randn(SAMPLES, 5, generator=g)
    extra, box = torch.randn(SAMPLES, 3, generator=g), torch.randn(SAMPLES, 2, generator=g)
    return {
        "two inputs": Subject(Two, (x, extra), label, plain),
        "mask and dict": Subject(Attention, tokens, label, of_dict),
        "three heads": Subject(Heads, x, (label, box), of_two),
    }


SUBJECTS = subjects()


def built(subject: Subject) -> nn.Module:
    torch.manual_seed(0)
    return subject.make()


def minibatch(subject: Subject, step: int) -> tuple[Any, Any]:
    first = (step * BATCH) % SAMPLES
    rows = slice(first, first + BATCH)
    return rows_of(subject.samples, rows), rows_of(subject.targets, rows)


def slow_profile(subject: Subject) -> Profile:
    """Layers that take so long that every strategy gives some of the work away."""
    graph = capture(built(subject), minibatch(subject, 0)[0])
    count = len(graph.layers)

    def times(factor: float) -> DeviceTimes:
        return DeviceTimes((4e-4 * factor,) * count, (8e-4 * factor,) * count, (1e-5,) * count)

    return graph_profile(graph, {"pi": times(4.0), "nuc": times(1.0), "cloud": times(1.0)})


def trained_alone(subject: Subject) -> tuple[dict[str, Tensor], list[float]]:
    module, losses = built(subject), []
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    for step in range(STEPS):
        x, y = minibatch(subject, step)
        args, kwargs = call_of(x)
        optimizer.zero_grad()
        loss = subject.loss(module(*args, **kwargs), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return {n: t.detach() for n, t in module.state_dict().items()}, losses


@pytest.mark.parametrize("name", list(SUBJECTS))
@pytest.mark.parametrize(("strategy", "options"), THREE, ids=[s for s, _ in THREE])
def test_trained_on_three_devices_it_is_trained_as_in_one_process(
    nodes: LocalFleet, triangle: Fleet, name: str, strategy: str, options: dict[str, object]
) -> None:
    subject = SUBJECTS[name]
    result = weft.train(
        built(subject), lambda step: minibatch(subject, step), subject.loss, fleet=triangle,
        strategy=strategy, options=options, steps=STEPS, batch=BATCH, lr=0.05,
        join=nodes.endpoint, group=nodes.group, adapt=False, profile=slow_profile(subject),
    )  # fmt: skip
    assert len(result.plan.devices) == (2 if strategy == "edgemove+" else 3)
    expected, losses = trained_alone(subject)
    torch.testing.assert_close(result.losses, losses, rtol=0, atol=1e-5)
    torch.testing.assert_close(dict(result.model.state_dict()), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_served_by_three_devices_it_answers_as_the_module(
    nodes: LocalFleet, triangle: Fleet, name: str
) -> None:
    subject = SUBJECTS[name]
    module = built(subject).eval()
    x, _ = minibatch(subject, 0)
    with weft.serve(
        module, x, triangle, strategy="chain", options={"devices": "pi,nuc,cloud"},
        join=nodes.endpoint, group=nodes.group, measure=False,
    ) as net:  # fmt: skip
        for step in range(2):
            args, kwargs = call_of(minibatch(subject, step)[0])
            answer = net(*args, **kwargs)
            with torch.no_grad():
                expected = module(*args, **kwargs)
            assert type(answer) is type(expected)
            assert pytree.tree_structure(answer) == pytree.tree_structure(expected)
            torch.testing.assert_close(answer, expected, rtol=0, atol=1e-5)


def test_a_served_network_refuses_inputs_of_another_form(
    nodes: LocalFleet, triangle: Fleet
) -> None:
    module = Attention().eval()
    tokens, mask = (SUBJECTS["mask and dict"].samples[name][:2] for name in ("tokens", "mask"))
    with weft.serve(
        module, {"tokens": tokens, "mask": mask}, triangle, strategy="all-edge",
        join=nodes.endpoint, group=nodes.group, measure=False,
    ) as net:  # fmt: skip
        for args, kwargs, says in (
            ((tokens,), {}, "has no tokens, mask; give it as a dict with tokens, mask"),
            ((tokens,), {"mask": mask}, "positional and keyword inputs are mixed"),
            (
                (),
                {"tokens": tokens, "mask": mask.long()},
                "input mask is int64 .* captured for bool",
            ),
            ((), {"tokens": tokens[:, :3], "mask": mask}, r"input tokens is int64 \[3\]"),
            ((), {"tokens": tokens[:1], "mask": mask[:1]}, "1 samples given"),
        ):
            with pytest.raises(InputError, match=says):
                net(*args, **kwargs)
        assert set(net(tokens=tokens, mask=mask)) == {"logits", "hidden", "mask"}


def test_data_that_does_not_fit_the_network_is_refused_before_the_run(triangle: Fleet) -> None:
    subject = SUBJECTS["mask and dict"]
    label = subject.targets
    for data, says in (
        (({"tokens": subject.samples["tokens"]}, label), "mask"),
        ((subject.samples, label[:5]), "24 samples but 5 targets"),
        (({**subject.samples, "mask": 3}, label), "data must be samples and targets"),
    ):
        with pytest.raises(InputError, match=says):
            weft.train(Attention(), data, of_dict, fleet=triangle, strategy="chain", steps=1)


def test_a_minibatch_that_is_padded_to_another_length_is_refused_in_words() -> None:
    words = [torch.zeros(4, 6, dtype=torch.long), torch.zeros(4, 5, dtype=torch.long)]
    source = source_of(lambda step: (words[step], torch.zeros(4, 3)), 4, 0)
    network = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 3))
    graph, signature = capture_signed(network, words[0])
    feed = source.feed(graph, signature, {})
    feed(0)
    with pytest.raises(
        InputError, match=r"minibatch 1: .* shape \(5,\), not \(6,\).* to one length"
    ):
        feed(1)
