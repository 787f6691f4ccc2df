"""StitchNet's experiments as jobs: one network, trained and tested with lost messages on one topology.

    outcomes = run_jobs([Job(place=53), Job(place=53, mapper="vertical")], tell)
    outcomes[Job(place=53)].accuracies[-1]

Jobs are plain data and run in processes of their own, two at a time. A job that several figures need runs
once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

import numpy as np

from weft.fleet.radio import Matrix, Topology, topology
from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Perceptron
from weft.plans.delivery import Routes
from weft.reference.lossy import LossyRadio, evaluate, train
from weft.strategies.stitchnet.broadcast import broadcasts
from weft.strategies.stitchnet.importance import First, clone, drop, failure_order, importance
from weft.strategies.stitchnet.mapping import MAPPERS, Spread, elect, ranked
from weft.strategies.stitchnet.paths import Path, messages, packets, plan_routes
from weft.strategies.stitchnet.respread import recover
from weft.strategies.stitchnet.search import best_spread, usual_drill
from weft.strategies.stitchnet.topology import EXPONENT

PROCESSES = 2
HIDDEN = 4
TESTS = 3  # how often a network is tested after each failure
PLUS = "stitchnet+"  # a further mapper: spread and routes for the number of packets of Mix-Mapped


@dataclass(frozen=True)
class Job:
    """One training run. The defaults are the paper's main setting."""

    place: int  # the seed of the topology, and of weights, samples and losses
    mapper: str = "mix-mapped"
    path: Path = "subpath"
    update: LostValues = "zero"
    exponent: float = EXPONENT
    random_coordinator: bool = False
    devices: int = 9  # the coordinator and the best connected workers; with 1 nothing is ever lost
    width: int = 64
    data: str = "fashion-mnist"
    epochs: int = 20
    failures: bool = False  # devices fail one by one after the training
    worse_at: float | None = None  # the exponent changes from 3.5 to `exponent` at this accuracy
    every: int | None = None  # steps between tests; None: once an epoch


@dataclass(frozen=True)
class Outcome:
    """The results of one training run."""

    accuracies: list[float]
    losses: list[float]
    steps: list[int]
    messages: int
    packets: int
    # By rule, and by who fails first: accuracy with 0, 1, 2, ... devices lost.
    failed: dict[str, list[float]] = field(default_factory=dict)
    changed_at: int | None = None  # the step after which the radio became worse
    broadcasts: int = 0  # transmissions of a batch if one packet serves all that hear it

    @property
    def final(self) -> float:
        """Test accuracy in percent after the last epoch."""
        return 100 * self.accuracies[-1]


@dataclass(frozen=True)
class Scene:
    """A job's topology as matrices, and the spread and routes that were decided for it."""

    prr: Matrix
    delivery: Matrix
    spread: Spread
    routes: Routes


def scene(job: Job, exponent: float | None = None) -> Scene:
    """The scene of a job. The mapping is made for the job's exponent, the routes for `exponent`."""
    place = topology(job.place)
    if job.devices == 1:
        # One device loses nothing. Any spread over links that lose nothing computes the same.
        sure = np.ones((2, 2))
        alone = MAPPERS["horizontal"](sure, (job.width,) * HIDDEN, 0, 0)
        return Scene(sure, sure, alone, plan_routes("direct", sure, alone))
    chosen = devices_of(job, place)
    grid = np.ix_(chosen, chosen)
    prr, widths = place.measured(job.exponent)[grid], (job.width,) * HIDDEN
    head = None
    if job.random_coordinator:
        head = int(np.random.RandomState(job.place).randint(len(chosen)))
    if job.mapper == PLUS:
        usual = MAPPERS["mix-mapped"](prr, widths, None, job.place)
        budget = packets(plan_routes("subpath", prr, usual))
        best = best_spread(prr, widths, budget)
        return Scene(prr, place.delivery(job.exponent)[grid], best.spread, best.routes)
    spread = MAPPERS[job.mapper](prr, widths, head, job.place)
    at = job.exponent if exponent is None else exponent
    prr = place.measured(at)[grid]
    return Scene(prr, place.delivery(at)[grid], spread, plan_routes(job.path, prr, spread))


def devices_of(job: Job, place: Topology) -> list[int]:
    """The devices that take part in a run, with the coordinator."""
    prr = place.measured(job.exponent)
    head = elect(prr)
    return sorted([head, *ranked(prr, head)[: job.devices - 1]])


def run_job(job: Job) -> Outcome:
    """Train and test once, in this process."""
    import torch

    from weft.data import load

    torch.set_num_threads(1)
    images = load(job.data)
    sizes = (images.train_x[0].numel(), *(job.width,) * HIDDEN, images.classes)
    net = Perceptron(sizes, seed=job.place, update=job.update)
    now = scene(job, 3.5 if job.worse_at is not None else None)
    later = channel_of(job, scene(job))
    changed: list[int] = []

    def worse(step: int, accuracy: float) -> LossyRadio | None:
        if job.worse_at is None or changed or accuracy < job.worse_at:
            return None
        changed.append(step)
        return later

    history = train(
        net, images, channel_of(job, now), epochs=job.epochs, every=job.every, seed=job.place,
        changed=worse,
    )  # fmt: skip
    failed: dict[str, list[float]] = {}
    if job.failures:
        norms = importance([w.numpy() for w in net.weights[:-1]])
        firsts: tuple[First, ...] = ("worst", "best")
        for first in firsts:
            for rule in ("planned",) if job.mapper == PLUS else ("cloned", "lost"):
                curve = []
                for at, spread, routes in losing(job, now, first, rule, norms):
                    channel = channel_of(job, replace(now, spread=spread, routes=routes))
                    tests = [evaluate(net, images, channel, at * TESTS + k) for k in range(TESTS)]
                    curve.append(float(np.mean(tests)))
                failed[f"{rule} {first}"] = curve
    alone = job.devices == 1
    return Outcome(
        history.accuracies, history.losses, history.steps, 0 if alone else messages(now.routes),
        0 if alone else packets(now.routes), failed, changed[0] if changed else None,
        0 if alone else broadcasts(now.routes),
    )  # fmt: skip


def losing(
    job: Job, now: Scene, first: First, rule: str, norms: list[np.ndarray]
) -> Iterable[tuple[int, Spread, Routes]]:
    """The spread and routes with 0, 1, 2, ... devices lost, until one worker is left."""
    spread, lost, budget = now.spread, list[int](), packets(now.routes)
    yield 0, spread, now.routes
    for failed in failure_order(now.prr, now.spread, first)[:-1]:
        lost.append(failed)
        if rule == "planned":
            best = recover(now.spread, now.prr, budget, lost, norms)
            yield len(lost), best.spread, best.routes
            continue
        spread = (
            clone(spread, failed, norms, job.place) if rule == "cloned" else drop(spread, failed)
        )
        yield len(lost), spread, plan_routes(job.path, now.prr, spread)


def channel_of(job: Job, place: Scene) -> LossyRadio:
    """The lossy channel of a run."""
    drill = usual_drill(place.spread) if job.mapper == PLUS else 0
    return LossyRadio(
        place.spread, place.routes, place.delivery, seed=job.place, update=job.update, drill=drill
    )


def run_jobs(jobs: Iterable[Job], tell: Callable[[str, float], None]) -> dict[Job, Outcome]:
    """Run every different job once, in two processes. `tell` gets the share that is done."""
    todo = list(dict.fromkeys(jobs))
    outcomes: dict[Job, Outcome] = {}
    # A new interpreter for each, because a forked one would share torch's threads with this process.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=fresh) as pool:
        futures = {pool.submit(run_job, job): job for job in todo}
        try:
            for done in as_completed(futures):
                outcomes[futures[done]] = done.result()
                tell(f"trained {len(outcomes)} of {len(todo)} networks", len(outcomes) / len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes
