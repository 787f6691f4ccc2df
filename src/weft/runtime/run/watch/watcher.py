"""Brings together what goes on beside a training run: evaluations, callbacks, the best weights, an early end.

    watcher = Watcher(Watching(evaluate_every=50, callbacks=[EarlyStopping()]), evaluator)
    watcher.take(copy)          # a copy of the network that the devices have reported
    watcher.stop                # where the run ends early: the copy, and why

An evaluation reads a copy, in a thread of its own, so the devices do not wait for it. Its result belongs to
the copy's minibatch. A run that is stopped ends with the weights of that copy, although the devices may have
gone on meanwhile: the result does not depend on who was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from weft.errors import InputError
from weft.runtime.run.records.copies import Copy
from weft.runtime.run.watch.callbacks import Better, Callback, EarlyStopping, StepDone
from weft.runtime.run.watch.evaluation import Evaluation, Evaluator, Metric, Test, test_pairs

if TYPE_CHECKING:
    from weft.runtime.run.workload.asked import Asked
    from weft.runtime.run.workload.protocol import Workload

MOST_WAITING = 2  # copies that wait for their evaluation; then the run waits for one


@dataclass(frozen=True)
class Watching:
    """What the user wants to see of a run, and to happen while it goes on."""

    evaluate_every: int | None = None  # minibatches between two evaluations
    test: Test | None = None  # test data; None: the data set's own
    metrics: Mapping[str, Metric] | None = None
    callbacks: Sequence[Callback] = ()
    keep_best: str | None = None  # a metric: the weights of its best evaluation are kept

    @property
    def without_evaluation(self) -> str:
        """What makes no sense without evaluations; empty if nothing."""
        early = any(isinstance(callback, EarlyStopping) for callback in self.callbacks)
        needs = {"keep_best": self.keep_best, "metrics": self.metrics, "EarlyStopping": early}
        return ", ".join(name for name, wanted in needs.items() if wanted)


UNWATCHED = Watching()


@dataclass(frozen=True)
class Stop:
    """An early end: the network as it is then, or None where each device has a network of its own."""

    copy: Copy | None
    why: str


class Watcher:
    """Tells callbacks of minibatches and evaluations in their order, from the thread that runs the run."""

    def __init__(
        self, watching: Watching, evaluator: Evaluator | None, copies: bool = True
    ) -> None:
        self.watching, self._evaluate, self._copies = watching, evaluator, copies
        self.evaluations: list[Evaluation] = []
        self.stop: Stop | None = None
        self.best: Evaluation | None = None
        self.best_state: Mapping[str, Tensor] | None = None
        self.on_best: Callable[[Evaluation, Mapping[str, Tensor]], object] = lambda e, s: None
        self.on_evaluation: Callable[[Evaluation], None] = lambda e: None
        self._better = Better(watching.keep_best) if watching.keep_best else None
        self._thread = ThreadPoolExecutor(1, "evaluation") if evaluator else None
        self._waiting: list[tuple[Copy, Future[Evaluation]]] = []
        self._steps: set[int] = set()  # minibatches that callbacks know
        self._evaluated: set[int] = set()
        self._asked_at: int | None = None  # a callback asked for an early end after this minibatch

    @property
    def takes_copies(self) -> bool:
        """Whether copies are evaluated, or needed because somebody may stop the run."""
        watching = self.watching
        return self._copies and bool(watching.evaluate_every or watching.callbacks)

    def recall(self, evaluations: Sequence[Evaluation], best: Mapping[str, Tensor] | None) -> None:
        """The evaluations of the run that is resumed, and its best weights."""
        for evaluation in evaluations:
            self._evaluated.add(evaluation.step)
            self.evaluations.append(evaluation)
            if self._better is not None and self._is_best(evaluation):
                self.best, self.best_state = evaluation, best
            for callback in self.watching.callbacks:
                callback.recall(evaluation)

    def step_done(self, done: StepDone) -> None:
        """A minibatch that all devices have done, also if it is done again."""
        if done.step in self._steps or self.stop is not None:
            return
        self._steps.add(done.step)
        if any([callback.on_step(done) for callback in self.watching.callbacks]):
            self._ask_to_stop(done.step)

    def take(self, copy: Copy) -> None:
        """A copy of the whole network: evaluates it where that is due."""
        if self.stop is not None:
            return
        if self._asked_at is not None and copy.step > self._asked_at:
            self.stop = Stop(copy, f"a callback stopped it after minibatch {self._asked_at}")
            return
        every = self.watching.evaluate_every
        if every and copy.step % every == 0:
            self.begin(copy)
        self.poll()

    def begin(self, copy: Copy) -> None:
        """Evaluates a copy, once for each minibatch."""
        if self._thread is None or self._evaluate is None or copy.step in self._evaluated:
            return
        self._evaluated.add(copy.step)
        self._waiting.append((copy, self._thread.submit(self._evaluate, copy.step, copy.state)))
        while len(self._waiting) > MOST_WAITING:
            self._take_first()

    def poll(self) -> bool:
        """Takes the evaluations that are ready. True if the run is to end."""
        while self._waiting and self._waiting[0][1].done():
            self._take_first()
        return self.stop is not None

    def finish(self) -> Stop | None:
        """Waits for all evaluations; where the run ends early, or None."""
        while self._waiting and self.stop is None:
            self._take_first()
        return self.stop

    def close(self) -> None:
        """No evaluation begins any more, and every callback knows that the run has ended."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        for callback in self.watching.callbacks:
            callback.close()

    def _take_first(self) -> None:
        copy, future = self._waiting.pop(0)
        evaluation = future.result()
        if self.stop is not None:
            return
        self.evaluations.append(evaluation)
        self.on_evaluation(evaluation)
        if self._better is not None and self._is_best(evaluation):
            self.best, self.best_state = evaluation, copy.state
            self.on_best(evaluation, copy.state)
        if any([callback.on_evaluation(evaluation) for callback in self.watching.callbacks]):
            self.stop = Stop(copy, f"a callback stopped it at {evaluation}")

    def _is_best(self, evaluation: Evaluation) -> bool:
        assert self._better is not None
        value = self._better.value(evaluation)
        return self.best is None or self._better.than(value, self._better.value(self.best))

    def _ask_to_stop(self, step: int) -> None:
        if self._asked_at is not None:
            return
        self._asked_at = step
        if not self._copies:
            self.stop = Stop(None, f"a callback stopped it after minibatch {step}")


def watcher_of(watching: Watching, asked: Asked, work: Workload) -> Watcher:
    """The watcher of a run. What cannot be evaluated is refused before anything starts."""
    if not watching.evaluate_every:
        return Watcher(watching, None, copies=work.has_copies)
    if not work.has_copies:
        raise InputError(
            "each device trains a network of its own, so there is no network to evaluate before the end: "
            "leave evaluate_every out"
        )
    test = watching.test if watching.test is not None else work.test
    if test is None:
        raise InputError("evaluate_every needs test data: the data has none, so give `test`")
    return Watcher(watching, Evaluator(asked.model, asked.loss, test_pairs(test), watching.metrics))
