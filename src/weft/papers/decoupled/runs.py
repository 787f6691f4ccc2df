"""The experiments of decoupled training: data, methods, and how they are run.

    outcomes = run_all(jobs(CIFAR, ["dense", "4N_5Cls"], [0]), Path("runs/reproduce/decoupled"), tell=silent)

All methods start from the same network, pre-trained on the public samples. Each outcome is stored in
`results.json` of the folder under its whole setting, so that a run that was stopped can continue.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from weft.errors import InputError
from weft.papers.decoupled.methods import METHODS, Method
from weft.papers.decoupled.networks import network
from weft.papers.registry import Tell

if TYPE_CHECKING:  # imports torch
    from weft.graph.split.classes.decouple import Score

WORKERS = 2
SCORES: tuple[Score, ...] = ("activation", "taylor", "random")


@dataclass(frozen=True)
class Setting:
    """A data set, how much of it is used, and how long everybody trains."""

    data: str
    title: str
    classes: int
    train: int  # samples, the same number of each class
    public: int  # of these samples; they also pre-train and calibrate
    test: int | None  # None: all test samples
    rounds: int = 8
    pretraining: int = 6  # epochs
    width: int = 16
    batch: int = 16
    network: str = "cnn5"
    last: int = 3  # convolutions that are decoupled
    share: float = 0.1  # of the filters that a class keeps: the paper's
    side: int | None = None  # images are scaled to this side
    lr: float = 0.03


CIFAR = Setting("cifar10", "CIFAR-10 subset", 10, 5000, 1000, 2000)
# The paper's networks. Few samples and rounds, because one pass of VGG-16 takes 20 ms on a core.
ALEXNET = Setting(
    "cifar10", "AlexNet, CIFAR-10 subset", 10, 1000, 300, 500, rounds=4, network="alexnet", side=64
)
VGG = Setting(
    "cifar10",
    "VGG-16, CIFAR-10 subset",
    10,
    600,
    200,
    300,
    rounds=5,
    network="vgg16",
    last=6,
    lr=0.01,
)
# The paper keeps 1% of 512 filters.
CIFAR100 = Setting("cifar100", "CIFAR-100 subset", 100, 10_000, 2000, 5000, share=0.03)
SPEECH = Setting("speech-commands", "Speech Commands subset", 12, 1800, 480, None)
DIGITS = Setting(
    "mnist5k", "MNIST, 5,000 images", 10, 600, 200, 300, rounds=3, pretraining=10, width=8, batch=32
)


class Outcome(Struct, frozen=True):
    """The results of one run."""

    accuracy: list[float]  # of the whole network, by tested round
    local: list[list[float]]  # of each peer's network on its classes, by tested round
    work: list[float]  # by peer: multiply-adds of all its forward passes
    sent: list[int]  # by peer: bytes
    round_s: float = 0.0  # a usual peer's round divided by its own computing time


@dataclass(frozen=True)
class Job:
    """One training run of the study."""

    setting: Setting
    method: str
    seed: int

    @property
    def key(self) -> str:
        """A name for everything that the outcome depends on."""
        whole = repr((self.setting, METHODS[self.method], self.seed))
        digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
        return f"{self.setting.data}/{self.setting.network}/{self.method}/{self.seed}/{digest}"


Weights = dict[str, np.ndarray[Any, np.dtype[Any]]]


def pretrain(setting: Setting, seed: int) -> Weights:
    """The network that all methods start from, trained on the public samples alone."""
    import torch

    from weft.reference.peers import Recipe, Samples
    from weft.reference.peers_baselines import train_whole

    data = prepare(setting, seed)
    torch.manual_seed(seed)
    net = network(setting.network, data.x.shape[1:], setting.classes, setting.width)
    public = Samples(data.public_x, data.public_y, data.test_x[:1], data.test_y[:1])
    recipe = Recipe(
        rounds=setting.pretraining, batch=setting.batch, lr=setting.lr, watch=False, seed=seed
    )
    trained = train_whole(net, public, recipe).net
    return {name: tensor.numpy() for name, tensor in trained.state_dict().items()}


@lru_cache(maxsize=2)
def prepare(setting: Setting, seed: int) -> Any:
    """The samples of one seed: equally many of each class, standardised, classes in turn."""
    import torch

    from weft import data as sets
    from weft.data.spectrogram import spectrograms
    from weft.reference.peers import Samples

    torch.set_num_threads(1)  # peers are small and run in processes of their own
    dataset = sets.load(setting.data)
    train, test = dataset.train_x, dataset.test_x
    if setting.data == "speech-commands":
        train, test = spectrograms(train), spectrograms(test)
    middle, spread = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    generator = torch.Generator().manual_seed(seed)

    def rows(labels: torch.Tensor, count: int) -> torch.Tensor:
        each = []
        for label in range(setting.classes):
            own = (labels == label).nonzero()[:, 0]
            each.append(
                own[torch.randperm(len(own), generator=generator)[: count // setting.classes]]
            )
        least = min(map(len, each))
        return torch.stack([own[:least] for own in each], 1).reshape(-1)

    def images(x: torch.Tensor) -> torch.Tensor:
        x = (x - middle) / spread
        if setting.side is not None:
            x = torch.nn.functional.interpolate(
                x, size=(setting.side, setting.side), mode="bilinear"
            )
        return x.contiguous(memory_format=torch.channels_last)

    own = rows(dataset.train_y, setting.train)
    judged = torch.arange(len(test)) if setting.test is None else rows(dataset.test_y, setting.test)
    return Samples(
        images(train[own]), dataset.train_y[own], images(test[judged]), dataset.test_y[judged],
        setting.public,
    )  # fmt: skip


def run_job(job: Job, weights: Weights) -> Outcome:
    """Run one method from the pre-trained network on."""
    import torch

    from weft.papers.decoupled.methods import run_method
    from weft.reference.peers import Recipe

    setting, data = job.setting, prepare(job.setting, job.seed)
    net = network(setting.network, data.x.shape[1:], setting.classes, setting.width)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    torch.manual_seed(job.seed)
    recipe = Recipe(rounds=setting.rounds, batch=setting.batch, lr=setting.lr, seed=job.seed)
    result = run_method(METHODS[job.method], net, data, recipe, setting.last, setting.share)
    run = result.run
    return Outcome(run.accuracy, run.local, result.work, run.sent, result.round_s)


def jobs(setting: Setting, methods: Iterable[str], seeds: Sequence[int]) -> list[Job]:
    """All runs of these methods with these seeds."""
    return [Job(setting, method, seed) for seed in seeds for method in methods]


def run_all(
    wanted: Sequence[Job], out: Path, tell: Tell, *, workers: int = WORKERS
) -> dict[Job, Outcome]:
    """The outcome of every job: from an earlier call if it is stored, else run now."""
    kept = load_results(out)
    missing = [job for job in wanted if job.key not in kept]
    if missing and workers == 1:
        for number, job in enumerate(missing):
            tell(f"{job.setting.data}: {METHODS[job.method].label}", number / len(missing))
            kept[job.key] = run_job(job, _pretrained(job.setting, job.seed))
            save_results(out, kept)
    elif missing:
        _run_in_processes(missing, kept, out, tell, workers)
    return {job: kept[job.key] for job in wanted}


@lru_cache(maxsize=4)
def _pretrained(setting: Setting, seed: int) -> Weights:
    return pretrain(setting, seed)


def _run_in_processes(
    missing: Sequence[Job], kept: dict[str, Outcome], out: Path, tell: Tell, workers: int
) -> None:
    # New processes, because a forked one would inherit threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        starts = {(job.setting, job.seed) for job in missing}
        nets = {start: pool.submit(pretrain, *start) for start in sorted(starts, key=repr)}
        tell("pre-training", 0.0)
        running: dict[Future[Outcome], Job] = {}
        for job in missing:
            weights = nets[job.setting, job.seed].result()
            running[pool.submit(run_job, job, weights)] = job
        for number, done in enumerate(as_completed(running), start=1):
            job = running[done]
            kept[job.key] = done.result()
            save_results(out, kept)
            tell(f"{job.setting.data}: {METHODS[job.method].label}", number / len(missing))


def load_results(out: Path) -> dict[str, Outcome]:
    """Results that an earlier call stored in the folder; InputError if they cannot be read."""
    path = out / "results.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Outcome])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"results {path} cannot be read: {error}; remove the file") from None


def save_results(out: Path, kept: dict[str, Outcome]) -> None:
    """Store results in the folder, so that the study can be continued."""
    try:
        (out / "results.json").write_bytes(msgspec.json.encode(kept))
    except OSError as error:
        raise InputError(f"results {out / 'results.json'}: {error.strerror or error}") from None


@dataclass(frozen=True)
class Summary:
    """One method over its seeds."""

    method: Method
    mean: float  # accuracy after the last round, percent
    spread: float  # standard deviation over the seeds
    curve: tuple[float, ...]  # means by tested round, percent
    local: tuple[float, ...]  # the same for the peers' own networks
    work: float  # of the busiest peer
    sent: float  # megabytes, mean over peers
    round_s: float
    seeds: int


def summarise(outcomes: dict[Job, Outcome], setting: Setting) -> dict[str, Summary]:
    """The summary of each method, in the order of the jobs."""
    summaries = {}
    for name in dict.fromkeys(job.method for job in outcomes if job.setting == setting):
        own = [o for job, o in outcomes.items() if job.setting == setting and job.method == name]
        last = np.array([o.accuracy[-1] for o in own]) * 100
        summaries[name] = Summary(
            METHODS[name],
            float(last.mean()),
            float(last.std(ddof=1)) if len(last) > 1 else 0.0,
            tuple((np.array([o.accuracy for o in own]).mean(0) * 100).tolist()),
            tuple((np.array([np.mean(o.local, 1) for o in own]).mean(0) * 100).tolist())
            if own[0].local
            else (),
            float(np.mean([max(o.work) for o in own])),
            float(np.mean([np.mean(o.sent) if o.sent else 0.0 for o in own])) / 1e6,
            float(np.mean([o.round_s for o in own])),
            len(own),
        )
    return summaries


def scoring_rows(setting: Setting) -> list[tuple[str, float, float]]:
    """(score, percent right after decoupling, percent with new statistics) for the first seed's network."""
    import torch

    from weft.graph.split.classes.calibrate import reestimate_norms
    from weft.graph.split.classes.decouple import captured, decouple, score_filters
    from weft.reference.peers import accuracy

    data = prepare(setting, 0)
    net = network(setting.network, data.x.shape[1:], setting.classes, setting.width)
    weights = _pretrained(setting, 0)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    dense = 100 * accuracy(net, data.test_x, data.test_y)
    rows = [("(the dense network)", dense, dense)]
    trained = captured(net, data.x[:2])
    for how in SCORES:
        scores = score_filters(trained, data.public_x, data.public_y, last=setting.last, how=how)
        parts = decouple(trained, scores, last=setting.last, keep=setting.share)
        before = accuracy(parts, data.test_x, data.test_y)
        reestimate_norms(parts, data.public_x)
        rows.append((how, 100 * before, 100 * accuracy(parts, data.test_x, data.test_y)))
    return rows
