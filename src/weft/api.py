"""The user's front: what `import weft` offers, and nothing else.

    module, example = load_model("lenet5")
    plan(module, example, Fleet.load("fleet.toml"), strategy="chain", batch=64)

It also gives Plan its table and its picture, so that `weft.plans` need not import `weft.report`; training and
serving are in `weft.adapt.train` and `weft.adapt.serve`.
Torch is imported only when a network is used, so that `import weft` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import showing
from weft.fleet.fleet import Fleet
from weft.planning.comparison import Comparison
from weft.planning.comparison import show_with as show_comparison_with
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans import registry
from weft.plans.derive import derive_profile
from weft.plans.plan import Mode, Objective, Plan, show_with
from weft.plans.profile import Profile

if TYPE_CHECKING:
    from torch import nn

    from weft.graph.capture.signature import Sample
    from weft.graph.split.classes.loss import Loss
    from weft.zoo.loading import Example


def load_model(
    text: str,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    *,
    weights: bool = True,
) -> tuple[nn.Module, Example]:
    """A network by its zoo name or `file.py:factory`, and an example of its input.

    `weights=False` leaves out a zoo network's weights. This is enough for planning, and much faster.
    """
    from weft.zoo.loading import load

    return load(text, input_shape, classes, weights=weights)


def plan(
    model: nn.Module,
    example_input: Sample,
    fleet: Fleet,
    *,
    strategy: str = registry.DEFAULT,
    batch: int | None = None,
    mode: Mode | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    name: str = "",
    source: str | None = None,
    optimizer: str = "sgd",
    loss: Loss | None = None,
) -> Plan:
    """Decides how to split a network over a fleet, and predicts the cost.

    `example_input` is a tensor, a tuple of tensors (positional inputs) or a dict (inputs by keyword), with
    its samples along dimension 0; `batch` (32 to train, 1 to infer, where not
    given) is what the plan is for. `profile` holds measured times; without it they are derived from
    the fleet's gflops. `options` are the strategy's own, as after `--set`. `source` is the device
    with the data, where it is not the one that the fleet file names. `loss` is the loss that you will
    train with, where it is not cross-entropy: where each device has some of the classes, one that has
    no meaning over some of them is refused here, as `train` refuses it.
    """
    from weft.graph.capture.module import capture

    mode = mode or registry.get(strategy).modes[0]
    graph = capture(model, example_input, name=name, mode=mode)
    task = make_task(
        derive_profile(graph, fleet) if profile is None else profile,
        fleet,
        batch=batch,
        mode=mode,
        options=options,
        graph=graph,
        source=source,
        optimizer=optimizer,
    )
    found = decide(strategy, task)
    if loss is not None and found.peers is not None and found.peers.structured:
        from weft.graph.split.classes.loss import check_class_loss

        classes = graph.values[graph.output].shape[-1]
        check_class_loss(loss, classes, {len(peer.classes) for peer in found.peers.peers})
    return found


def compare(
    model: nn.Module,
    example_input: Sample,
    fleet: Fleet,
    *,
    strategies: Sequence[str] | None = None,
    batch: int | None = None,
    mode: Mode = "train",
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    objective: Objective = "time",
    name: str = "",
    source: str | None = None,
    optimizer: str = "sgd",
    limit_s: float | None = 60.0,
) -> Comparison:
    """Plans and prices several strategies (all for the mode) and advises one.

        comparison = weft.compare(model, example, fleet, batch=64)
        print(comparison)                            # the table; a notebook shows it as HTML
        comparison.best.strategy, comparison["chain"].seconds

    The arguments are those of `plan`. A strategy that computes longer than `limit_s` seconds to plan is left
    out.
    """
    from weft.graph.capture.module import capture
    from weft.planning.advise import advise
    from weft.planning.compare import compare as compare_strategies

    graph = capture(model, example_input, name=name, mode=mode)
    task = make_task(
        derive_profile(graph, fleet) if profile is None else profile,
        fleet,
        batch=batch,
        mode=mode,
        options=options,
        graph=graph,
        source=source,
        optimizer=optimizer,
        objective=objective,
    )
    rows = compare_strategies(task, strategies, limit_s=limit_s)
    unit = "a training step" if mode == "train" else "an answer"
    title = f"{task.profile.model}, batch {task.batch}: {unit}"
    return Comparison(tuple(rows), advise(rows, task), title)


def _comparison(comparison: Comparison) -> str:
    from weft.report.tables import compare_table, render

    return render(compare_table(comparison.rows, comparison.title, comparison.best))


def _table(plan: Plan) -> str:
    from weft.report.tables import plan_table, render

    return render(plan_table(plan))


def _draw(plan: Plan, path: Path) -> None:
    from weft.report.pictures import draw_plan

    draw_plan(plan, path)


def _html(name: str) -> Callable[[Any], str]:
    """How a class is written as HTML. What draws is imported when something is shown."""

    def write(shown: object) -> str:
        from weft.report.html import WRITERS

        return WRITERS[name](shown)

    return write


show_with(_table, _draw)
show_comparison_with(_comparison)
showing.HTML.update(
    {name: _html(name) for name in ("Plan", "Timeline", "Comparison", "TrainResult")}
)
