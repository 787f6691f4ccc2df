"""What goes on beside a run on real nodes: evaluations, callbacks, the best weights, an early end."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import weft
from weft.errors import InputError
from weft.fleet.fleet import Device, Fleet, Link
from weft.runtime.run.watch.callbacks import StepDone
from weft.runtime.run.watch.evaluation import Evaluation

STEPS, BATCH, EVERY, RATE = 20, 8, 4, 0.1
FLEET = Fleet(
    (Device("pi", gflops=50.0, data=True), Device("nuc", "edge", gflops=50.0)),
    (Link(("pi", "nuc"), 500.0, 500.0, 0.2),),
)
TWO = {"devices": "pi,nuc", "micro_batches": 1}
TEST_X = torch.randn(30, 6, generator=torch.Generator().manual_seed(99))
TEST_Y = torch.arange(30) % 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))


def minibatch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 6, generator=generator), torch.arange(BATCH) % 4


def evaluated(net: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        output = net(TEST_X)
    accuracy = float((output.argmax(1) == TEST_Y).float().mean())
    return {"loss": float(nn.functional.cross_entropy(output, TEST_Y)), "accuracy": accuracy}


def alone(steps: int, make: Any = None) -> tuple[nn.Module, dict[int, dict[str, float]]]:
    """A plain loop with an evaluation every few minibatches, which the schedule looks at."""
    net, evaluations = network(), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    scheduler = make(optimizer) if make else None
    for step in range(steps):
        x, y = minibatch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            evaluations[step + 1] = evaluated(net)
            if scheduler:
                scheduler.step(evaluations[step + 1]["loss"])
    return net, evaluations


def run(**more: Any) -> weft.TrainResult:
    asked = {"evaluate_every": EVERY, "test": (TEST_X, TEST_Y), "steps": STEPS, **more}
    return weft.train(
        network(), minibatch, nn.CrossEntropyLoss(), fleet=FLEET, strategy="chain", batch=BATCH, lr=RATE,
        local=True, options=TWO, **asked,
    )  # fmt: skip


def assert_equal(result: weft.TrainResult, net: nn.Module) -> None:
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6)


class Recorder(weft.Callback):
    """Remembers what it was told; stops at a minibatch or at an evaluation."""

    def __init__(self, stop_at: int = 10**9, stop_after: int = 10**9) -> None:
        self.stop_at, self.stop_after = stop_at, stop_after
        self.steps: list[StepDone] = []
        self.evaluations: list[Evaluation] = []
        self.closed = 0

    def on_step(self, done: StepDone) -> bool:
        self.steps.append(done)
        return done.step >= self.stop_after

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        self.evaluations.append(evaluation)
        return evaluation.step >= self.stop_at

    def close(self) -> None:
        self.closed += 1


def test_evaluations_are_those_of_one_process_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    net, expected = alone(STEPS + 2)
    recorder, out = Recorder(), tmp_path / "run"
    result = run(
        steps=STEPS + 2, callbacks=[recorder, weft.CsvLog(out / "log.csv")], keep_best="accuracy",
        metrics={"spread": lambda output, target: output.std(0).mean()}, out=out,
    )  # fmt: skip
    assert_equal(result, net)
    assert [e.step for e in result.evaluations] == [4, 8, 12, 16, 20, 22]
    for evaluation in result.evaluations:
        for name, value in expected[evaluation.step].items():
            assert evaluation.values[name] == pytest.approx(value, rel=1e-4)
        assert evaluation.values["spread"] > 0
    best = max(expected.values(), key=lambda values: values["accuracy"])["accuracy"]
    assert result.best is not None
    assert result.best.values["accuracy"] == pytest.approx(best)
    kept = network()
    kept.load_state_dict(load_file(out / "best.safetensors"))
    assert evaluated(kept)["accuracy"] == pytest.approx(best)
    assert [done.step for done in recorder.steps] == list(range(STEPS + 2))
    assert recorder.evaluations == result.evaluations
    assert recorder.closed == 1
    assert [step for step, _ in result.history["test/loss"]] == [4, 8, 12, 16, 20, 22]
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum("loss" in row for row in rows) == STEPS + 2
    assert [row["step"] for row in rows if "evaluated" in row] == [3, 7, 11, 15, 19, 21]
    assert (out / "log.csv").read_text().count("test/accuracy") == 6


def test_a_stopped_run_ends_with_the_weights_of_its_evaluation(tmp_path: Path) -> None:
    net, _ = alone(8)
    result = run(steps=200, callbacks=[Recorder(stop_at=8)], out=tmp_path / "run")
    assert_equal(result, net)
    assert (result.steps, len(result.losses)) == (8, 8)
    assert "stopped" in [event["kind"] for event in result.events]
    assert "8" in result.stopped or "loss" in result.stopped
    net, _ = alone(12)  # and a resumed run goes on from there
    again = run(steps=12, out=tmp_path / "run", resume=True)
    assert_equal(again, net)
    assert [e.step for e in again.evaluations] == [4, 8, 12]


def test_early_stopping_and_a_schedule_that_looks_at_the_loss() -> None:
    make = partial(lr_scheduler.ReduceLROnPlateau, factor=0.1, patience=0, threshold=0.5)
    net, expected = alone(STEPS, make)
    result = run(schedule=make)
    assert_equal(result, net)
    assert result.history["lr"][0][1] == pytest.approx(RATE)
    assert result.history["lr"][-1][1] < RATE
    losses = [values["loss"] for values in expected.values()]
    stops = run(callbacks=[weft.EarlyStopping(patience=1, least=10.0)])
    assert losses
    assert stops.steps == 2 * EVERY


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"evaluate_every": None, "keep_best": "loss"}, "keep_best needs evaluations"),
        ({"evaluate_every": None, "schedule": "plateau"}, "needs evaluations"),
        ({"test": None}, "give `test`"),
        ({"test": iter([])}, "only once"),
        ({"metrics": {"loss": lambda y, t: 0.0}}, "another name"),
        ({"evaluate_every": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(**asked)


def test_test_data_may_be_a_loader_a_list_or_samples_by_number() -> None:
    from weft.runtime.run.watch.evaluation import Evaluator, test_pairs

    net = network()
    samples = TensorDataset(TEST_X, TEST_Y)
    forms: list[Any] = [
        (TEST_X, TEST_Y), samples, DataLoader(samples, batch_size=7),
        [(TEST_X[:11], TEST_Y[:11]), (TEST_X[11:], TEST_Y[11:])],
    ]  # fmt: skip
    for form in forms:
        evaluate = Evaluator(net, nn.CrossEntropyLoss(), test_pairs(form), None)
        for _ in range(2):  # it is read again and again
            values = evaluate(1, net.state_dict()).values
            assert values == pytest.approx(evaluated(net), rel=1e-5)
