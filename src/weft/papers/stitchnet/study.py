"""The networks that StitchNet's figures need, and their results.

study = Study(QUICK, run_jobs(all_jobs(QUICK), tell))
study.mean("mix"), study.deviation("mix")      # test accuracy in percent over topologies
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, pstdev

from weft.papers.stitchnet.runs import PLUS, Job, Outcome
from weft.strategies.stitchnet.topology import EXPONENT, find_topologies

LETTERS = "emnist-letters"  # the paper's third data set
SOME_LETTERS = (
    "letters-az"  # a small sample of other letters, for the figure where EMNIST is not there
)
LOSSY = 4.0  # the exponent at which stitchnet+ is compared with Mix-Mapped


@dataclass(frozen=True)
class Setting:
    """How much is run: `many` topologies for the main results, `few` for the others."""

    data: str
    sets: tuple[str, ...]  # for Fig. 18
    many: int
    few: int
    epochs: int
    exponents: tuple[float, ...]  # for Fig. 8
    devices: tuple[int, ...]  # for Fig. 17
    worse_every: int  # steps between tests for Fig. 15
    worse_epochs: int

    @property
    def like_paper(self) -> bool:
        """Whether accuracies can be compared with the paper's."""
        return self.data == "fashion-mnist"


FULL = Setting(
    "fashion-mnist", ("fashion-mnist", "mnist", LETTERS), 6, 3, 20,
    (3.5, 3.7, 3.9, 4.0), (3, 6), 60, 5,
)  # fmt: skip
QUICK = Setting("mnist5k", ("mnist5k",), 2, 1, 12, (3.5, 3.9, 4.0), (5,), 10, 12)


def with_other_letters(setting: Setting) -> Setting:
    """The same study with a sample of other letters in place of EMNIST's."""
    sets = tuple(SOME_LETTERS if name == LETTERS else name for name in setting.sets)
    return replace(setting, sets=sets)


def variants(setting: Setting) -> dict[str, tuple[int, Callable[[int], Job]]]:
    """By name: the number of topologies, and the job on one of them."""
    many, few = setting.many, setting.few

    def plain(**changes: object) -> Callable[[int], Job]:
        base: dict[str, object] = {"data": setting.data, "epochs": setting.epochs, **changes}
        return lambda place: Job(place=place, **base)  # type: ignore[arg-type]

    worse = {"worse_at": 0.75, "every": setting.worse_every, "epochs": setting.worse_epochs}
    jobs = {
        "mix": (many, plain(failures=True)),
        "random": (many, plain(mapper="random-units", failures=True)),
        "vertical": (many, plain(mapper="vertical")),
        "horizontal": (few, plain(mapper="horizontal")),
        "average": (few, plain(mapper="average-layers")),
        "random mapping": (few, plain(mapper="mix-mapped-random")),
        "reverse mapping": (few, plain(mapper="mix-mapped-reverse")),
        "random coordinator": (few, plain(random_coordinator=True)),
        "own": (few, plain(update="own")),
        "none": (few, plain(update="none")),
        "coordinator none": (few, plain(path="coordinator", update="none")),
        "direct": (few, plain(path="direct")),
        "coordinator": (few, plain(path="coordinator")),
        "worse mix": (few, plain(**worse)),
        "worse random": (few, plain(mapper="random-units", **worse)),
        f"mix {LOSSY}": (many, plain(exponent=LOSSY, failures=True)),
        f"plus {LOSSY}": (many, plain(mapper=PLUS, exponent=LOSSY, failures=True)),
        "plus": (few, plain(mapper=PLUS)),
    }
    for exponent in setting.exponents:
        if exponent not in (EXPONENT, LOSSY):
            jobs[f"mix {exponent}"] = (few, plain(exponent=exponent))
        if exponent != EXPONENT:
            jobs[f"random {exponent}"] = (few, plain(mapper="random-units", exponent=exponent))
    for devices in (1, *setting.devices):
        jobs[f"devices {devices}"] = (few, plain(devices=devices))
    for name in setting.sets:
        for width in (64, 128):
            if (name, width) != (setting.data, 64):
                jobs[f"{name} {width}"] = (few, plain(data=name, width=width))
    return jobs


def all_jobs(setting: Setting) -> list[Job]:
    """All runs of the study."""
    return [job for name in variants(setting) for job in jobs_of(setting, name)]


def jobs_of(setting: Setting, name: str) -> list[Job]:
    """The runs of one variant, one for each topology."""
    many, job = variants(setting)[name]
    return [job(place.seed) for place in find_topologies(setting.many)[:many]]


@dataclass(frozen=True)
class Study:
    """All outcomes of the study, by variant."""

    setting: Setting
    outcomes: dict[Job, Outcome]
    without_letters: str = ""  # why EMNIST Letters cannot be read; empty if it can

    def of(self, name: str, like: str | None = None) -> list[Outcome]:
        """A variant's outcomes; with `like`, only on the topologies that the other variant has too."""
        jobs = jobs_of(self.setting, name)
        if like is not None:
            jobs = jobs[: len(jobs_of(self.setting, like))]
        return [self.outcomes[job] for job in jobs]

    def finals(self, name: str, like: str | None = None, epoch: int = -1) -> list[float]:
        """Test accuracies in percent after the last test or another one, one per topology."""
        return [100 * outcome.accuracies[epoch] for outcome in self.of(name, like)]

    def mean(self, name: str, like: str | None = None, epoch: int = -1) -> float:
        """The mean of `finals`."""
        return mean(self.finals(name, like, epoch))

    def deviation(self, name: str) -> float:
        """The standard deviation of `finals`."""
        return pstdev(self.finals(name))

    def packets(self, name: str) -> float:
        """Mean packets of a batch, counted as unicast."""
        return mean(outcome.packets for outcome in self.of(name))

    def broadcasts(self, name: str) -> float:
        """Mean packets of a batch, counted as broadcasts."""
        return mean(outcome.broadcasts for outcome in self.of(name))

    def gains(self, name: str, over: str, epoch: int = -1) -> list[float]:
        """Points by which one variant is above another, for each topology that both have."""
        first, second = self.finals(name, over, epoch), self.finals(over, name, epoch)
        return [a - b for a, b in zip(first, second, strict=True)]

    def failed_gains(self, name: str, over: str, rules: tuple[str, str]) -> list[list[float]]:
        """With 0, 1, 2, ... devices lost: points by which one variant is above another, by topology."""
        pairs = zip(self.of(name, over), self.of(over, name), strict=True)
        rows = [
            [
                100 * (a - b)
                for a, b in zip(one.failed[rules[0]], other.failed[rules[1]], strict=True)
            ]
            for one, other in pairs
        ]
        return [list(column) for column in zip(*rows, strict=True)]

    def messages(self, name: str) -> float:
        """Mean messages of a batch."""
        return mean(outcome.messages for outcome in self.of(name))

    def curve(self, name: str, what: str = "accuracies") -> list[float]:
        """The mean over topologies at each test; accuracies in percent."""
        rows = [getattr(outcome, what) for outcome in self.of(name)]
        factor = 100 if what == "accuracies" else 1
        return [factor * mean(values) for values in zip(*rows, strict=True)]

    def after_failures(self, name: str, rule: str) -> list[float]:
        """Accuracy in percent with 0, 1, 2, ... devices lost."""
        rows = [outcome.failed[rule] for outcome in self.of(name)]
        return [100 * mean(values) for values in zip(*rows, strict=True)]

    def at(self, name: str, exponent: float) -> str:
        """The name of the variant of `mix` or `random` at an exponent of Fig. 8."""
        return name if exponent == EXPONENT else f"{name} {exponent}"
