"""Predicted against measured on real nodes: nothing is paced, the kernel shapes the links and the processors.

    python benchmarks/truth.py [--quick] [--case TEXT] [--from N] [--to N] [--add FILE]
    python benchmarks/truth.py --table FILE

Every node is a process in a network namespace of its own. Its links are veth pairs under `tc tbf`, its CPU
time is limited by a cgroup (quota of a core, period 4 ms). The prediction comes from what `weft profile
--join` measures on these nodes, and from nothing else. A case is run until the medians of two runs in a row
agree to 3%; their mean counts. After eight runs it is given up, and the table says so. For each network and
fleet the plan that `auto` takes is run too, and the best one place. A plan that several strategies have in
common is one case. `--add` appends the cases of a setting to a file once the setting is done, and leaves out
settings that the file has already. So the table can be collected in parts: repeat the same command.

It needs root, iproute2 and cgroup v1 (cpu). On a machine that does other work, figures are not to be trusted:
the cgroup asks for a large weight, but caches and memory are shared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from weft.adapt.serve import serve
from weft.adapt.train import train
from weft.errors import WeftError
from weft.fleet.fleet import Device, Fleet, Link
from weft.graph.capture.module import capture, capture_loss
from weft.graph.network import Graph
from weft.planning.decide import decide
from weft.planning.exactness import differs
from weft.planning.one_place import best_place, one_places
from weft.planning.task import make_task
from weft.plans.plan import Mode, Plan
from weft.plans.profile import Profile
from weft.program.lower.lower import lower
from weft.program.timeline import Timeline
from weft.runtime.run.measuring.known import measured_fleet
from weft.runtime.run.serve import latencies_s
from weft.simulate.simulate import simulate
from weft.zoo.loading import load

sys.path.insert(0, str(Path(__file__).parent))
from real_nodes import RealNodes, limited

NAMES = ("phone", "edge", "cloud")
TIERS = ("device", "edge", "cloud")
AGREE, MOST_RUNS, RUN_S = 0.03, 8, 4.0
UNSHAPED = 10_000.0  # Mbps: a rate that nothing here reaches


@dataclass(frozen=True)
class Setting:
    """A network on a fleet, and the strategies that are tried there."""

    model: str
    shape: tuple[int, ...]
    batch: int
    mode: Mode
    mbps: float
    quotas: tuple[float, float, float]
    strategies: tuple[str, ...]

    @property
    def label(self) -> str:
        rate = "unshaped" if self.mbps >= UNSHAPED else f"{self.mbps:g} Mbps"
        return f"{self.model} {self.mode} {self.batch}, {rate}, cores {'/'.join(map(str, self.quotas))}"


TRAIN = ("auto", "chain", "hiertrain+", "edgemove+")
INFER = ("auto", "chain", "coopai+")
SLOW, EVEN, STEEP = (0.25, 0.5, 0.5), (0.5, 0.5, 0.5), (0.25, 0.5, 1.0)
SETTINGS = [
    Setting("lenet5", (1, 28, 28), 512, "train", UNSHAPED, EVEN, TRAIN),
    Setting("vgg-small", (1, 28, 28), 64, "train", 100.0, EVEN, TRAIN),
    Setting("resnet18", (3, 64, 64), 8, "infer", 100.0, EVEN, INFER),
    Setting("transformer", (1, 28, 28), 256, "train", 20.0, STEEP, TRAIN),
    Setting("lenet5", (1, 28, 28), 512, "train", 20.0, SLOW, TRAIN),
    Setting("vgg-small", (1, 28, 28), 64, "train", 5.0, STEEP, TRAIN),
    Setting("resnet18", (3, 64, 64), 8, "train", 100.0, STEEP, TRAIN),
    Setting("resnet18", (3, 64, 64), 8, "infer", 20.0, STEEP, INFER),
    Setting("vgg-small", (1, 28, 28), 64, "infer", 1000.0, EVEN, INFER),
]
QUICK = 3


@dataclass(frozen=True)
class Outcome:
    """One case: what was predicted and what came out, in seconds."""

    setting: str
    strategy: str
    devices: str
    predicted_s: float
    measured_s: float
    runs: tuple[float, ...]
    differs: str = ""  # from what one process computes
    load: float = 0.0  # of the machine
    # By device: the seconds of a step that each kind of work takes, predicted and measured.
    parts: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def settled(self) -> bool:
        """Whether the last two runs agree."""
        return agree(self.runs)


def agree(runs: Sequence[float]) -> bool:
    """Whether the last two of some runs agree."""
    return len(runs) > 1 and abs(runs[-1] / runs[-2] - 1) < AGREE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"only the first {QUICK} settings")
    parser.add_argument("--case", default="", help="only settings whose label contains this text")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of a setting")
    parser.add_argument("--to", type=int, help="number of the setting after the last one")
    parser.add_argument("--add", type=Path, help="append the cases to this file, as JSON lines")
    parser.add_argument("--table", type=Path, help="print the cases of this file; measure nothing")
    options = parser.parse_args()
    if options.table:
        table(load_outcomes(options.table))
        return
    torch.set_num_threads(1)
    chosen = SETTINGS[options.first : QUICK if options.quick else options.to]
    outcomes = load_outcomes(options.add) if options.add and options.add.exists() else []
    done = {outcome.setting for outcome in outcomes}
    for setting in (s for s in chosen if options.case in s.label and s.label not in done):
        print(f"\n{setting.label}", flush=True)
        cases = []
        for outcome in run_setting(setting):
            cases.append(outcome)
            print(f"  {line(outcome)}", flush=True)
        outcomes += cases
        if options.add:  # a setting that was stopped half-way is done again as a whole
            with options.add.open("a") as file:
                file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in cases)
    summary(outcomes)


def load_outcomes(path: Path) -> list[Outcome]:
    return [msgspec.json.decode(text, type=Outcome) for text in path.read_text().splitlines()]


def table(outcomes: list[Outcome]) -> None:
    """The cases as a table for docs/benchmarks.md."""
    print(
        "| setting | plan | on | predicted | measured | error | load |\n|---|---|---|---|---|---|---|"
    )
    before = ""
    for o in outcomes:
        name = f"{o.strategy} ({o.differs})" if o.differs else o.strategy
        times = f"{o.predicted_s * 1e3:.0f} ms | {o.measured_s * 1e3:.0f} ms | {o.error:+.0%}"
        times += "" if o.settled else " (runs differ)"
        setting = "" if o.setting == before else o.setting
        print(f"| {setting} | {name} | {o.devices} | {times} | {o.load:.0f} |")
        before = o.setting
    summary(outcomes)


def line(outcome: Outcome) -> str:
    """One case for people."""
    runs = " ".join(f"{s * 1e3:.1f}" for s in outcome.runs)
    predicted, measured = (f"{s * 1e3:8.1f} ms" for s in (outcome.predicted_s, outcome.measured_s))
    place = f"{outcome.strategy:12} on {outcome.devices:18}"
    left = "" if outcome.settled else ", no two in a row agree"
    return f"{place} predicted {predicted}, measured {measured}, {outcome.error:+6.1%}   ({runs}{left})"


def summary(outcomes: list[Outcome]) -> None:
    """The errors of all cases, and how `auto` did against the best measured plan of its setting."""
    if not outcomes:
        return
    errors = sorted(abs(o.error) for o in outcomes)
    print(
        f"\n{len(errors)} cases: median error {statistics.median(errors):.1%}, largest {errors[-1]:.1%}, "
        f"{sum(not o.settled for o in outcomes)} of them with runs that differ"
    )
    for label in dict.fromkeys(o.setting for o in outcomes):
        here = [o for o in outcomes if o.setting == label]
        auto = next((o for o in here if "auto" in o.strategy.split(", ")), None)
        exact = [o for o in here if not o.differs]  # the others do not compute the same
        if auto is not None and exact:
            best = min(exact, key=lambda o: o.measured_s)
            more = auto.measured_s / best.measured_s - 1
            print(
                f"{label}: auto is {more:+.1%} against the best, {best.strategy} on {best.devices}"
            )


def run_setting(setting: Setting) -> Iterator[Outcome]:
    """All cases of a setting, on the same nodes."""
    torch.manual_seed(0)
    module, example = load(setting.model, setting.shape, 10)
    graph = capture(module, example, name=setting.model)
    if setting.mode == "train":  # as `weft train` measures: with the loss
        graph = capture_loss(graph, nn.CrossEntropyLoss(), torch.zeros(2, dtype=torch.long))
    rates = tuple(
        Link((a, b), setting.mbps, setting.mbps)
        for n, a in enumerate(NAMES)
        for b in NAMES[n + 1 :]
    )
    wired = Fleet(tuple(Device(name) for name in NAMES), rates)
    with (
        limited(dict(zip(NAMES, setting.quotas, strict=True))) as limit,
        RealNodes(wired, NAMES) as nodes,
    ):
        nodes.crew.wait_for(NAMES, 60.0)
        for name, process in nodes.processes.items():
            limit(name, process.pid)
        begin = time.monotonic()
        measured = measured_fleet(
            graph, nodes.place, batch=setting.batch, training=setting.mode == "train", wait=1.0
        )
        print(
            f"  measured in {time.monotonic() - begin:.1f} s: {told(measured.fleet, measured.profile)}",
            flush=True,
        )
        fleet = with_tiers(measured.fleet)
        for names, plan in distinct(plans(setting, measured.profile, fleet, graph)):
            outcome = run_case(setting, names, plan, nodes, module, differs(plan, graph))
            if outcome is not None:
                yield outcome


def told(fleet: Fleet, profile: Profile) -> str:
    rates = ", ".join(f"{link.up_mbps:.1f}/{link.down_mbps:.1f}" for link in fleet.link)
    last = len(profile.layers) - 1
    times = ", ".join(
        f"{n} {t.forward(0, last, 1) * 1e3:.2f} ms a sample, core {t.share:.2f}, "
        f"{t.message_s * 1e3:.2f} ms a message" for n, t in profile.devices.items()
    )  # fmt: skip
    return f"{times}; Mbps {rates}"


def with_tiers(fleet: Fleet) -> Fleet:
    """The measured fleet in the order of the names, with tiers; the phone has the data."""
    devices = tuple(
        msgspec.structs.replace(fleet.device(name), tier=tier, data=name == NAMES[0])
        for name, tier in zip(NAMES, TIERS, strict=True)
    )
    return Fleet(devices, fleet.link)


def plans(
    setting: Setting, profile: Profile, fleet: Fleet, graph: Graph
) -> Iterator[tuple[str, Plan]]:
    """Every strategy's plan, and the best single place."""
    task = make_task(profile, fleet, batch=setting.batch, mode=setting.mode, graph=graph)
    for name in setting.strategies:
        try:
            yield name, decide(name, task)
        except WeftError as error:
            print(f"  {name}: {error}")
    alone = best_place(one_places(task), NAMES[0])
    if alone is not None:
        yield "one place", alone


def distinct(named: Iterable[tuple[str, Plan]]) -> list[tuple[str, Plan]]:
    """Each plan once, with the names of all strategies that have it."""
    found: list[tuple[list[str], Plan]] = []
    for name, plan in named:
        code = lower(plan).code
        same = next((names for names, other in found if lower(other).code == code), None)
        if same is None:
            found.append(([name], plan))
        else:
            same.append(name)
    return [(", ".join(names), plan) for names, plan in found]


def run_case(
    setting: Setting, name: str, plan: Plan, nodes: RealNodes, module: nn.Module, differs: str
) -> Outcome | None:
    """Runs a plan until two medians agree."""
    assert plan.predicted is not None
    predicted = plan.predicted.seconds
    count = max(8, min(200, round(RUN_S / predicted)))
    runs: list[float] = []
    timeline = Timeline((), ())
    while len(runs) < MOST_RUNS and not agree(runs):
        try:
            timeline, seconds = once(setting, plan, count, nodes, module)
            runs.append(seconds)
        except WeftError as error:
            print(f"  {name}: {error}")
            return None
    workers = dict.fromkeys(shard.device for shard in plan.shards)
    return Outcome(
        setting.label, name, ",".join(workers), predicted, statistics.mean(runs[-2:]), tuple(runs),
        differs, os.getloadavg()[0], parts(plan, timeline),
    )  # fmt: skip


def parts(plan: Plan, measured: Timeline) -> dict[str, dict[str, tuple[float, float]]]:
    """Where the time of a step goes: what devices do, predicted and measured."""
    both = [seconds_of(simulate(lower(plan), 6)), seconds_of(measured)]
    keys = sorted({key for side in both for key in side})
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for where, what in keys:
        predicted, took = (side.get((where, what), 0.0) for side in both)
        found.setdefault(where, {})[what] = predicted, took
    return found


def seconds_of(timeline: Timeline) -> dict[tuple[str, str], float]:
    """Seconds of a step by device and kind of work, over the later half."""
    steps = {span.step for span in timeline.spans}
    half = (min(steps) + max(steps)) / 2 if steps else 0.0
    counted = max(1, sum(step >= half for step in steps))
    seconds: dict[tuple[str, str], float] = {}
    for span in timeline.spans:
        if span.step >= half and span.what != "transfer":
            key = span.where, span.what
            seconds[key] = seconds.get(key, 0.0) + (span.end - span.start) / counted
    return seconds


def once(
    setting: Setting, plan: Plan, count: int, nodes: RealNodes, module: nn.Module
) -> tuple[Timeline, float]:
    """A run's timeline, and the median seconds of a step, or of an answer, in its later half."""
    x = torch.rand(setting.batch, *setting.shape)
    if setting.mode == "infer":
        with serve(
            module.eval(), x, plan.fleet, plan=plan, batch=setting.batch, join=nodes.place.join,
            group=nodes.group, profile=plan.profile,
        ) as net:  # fmt: skip
            for _ in range(count):
                net(x)
            timeline = net.timeline()[0]
            answers = latencies_s(timeline)
            return timeline, statistics.median(answers[len(answers) // 2 :])
    data = DataLoader(TensorDataset(x, torch.arange(setting.batch) % 10), batch_size=setting.batch)
    result = train(
        module.train(), data, nn.CrossEntropyLoss(), plan=plan, steps=count, lr=1e-3, adapt=False,
        join=nodes.place.join, group=nodes.group, profile=plan.profile, patience=20.0,
    )  # fmt: skip
    return result.timeline, result.timeline.step_s


if __name__ == "__main__":
    main()
