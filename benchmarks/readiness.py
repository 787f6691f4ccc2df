"""What it costs to be ready for the loss of any device, and what is left of the speed when devices are lost.

    python benchmarks/readiness.py cost --pairs 10      CPU seconds: --on-loss recover against stop
    python benchmarks/readiness.py flat --steps 3000    memory, threads and descriptors of every process
    python benchmarks/readiness.py goodput --kills 4    minibatches a second with a kill every 15 s

`cost` counts the CPU time of all processes of a run, between two minibatches of it: start-up is not
counted. The devices are not slowed down, so they compute all the time. Two networks: a small one with SGD,
and one of 1.6 million weights with Adam, whose copies are 19 MB. The two runs of a pair run at the same time,
each on a core of its own, and then once more on each other's core: what else the machine does, and a faster
core, hit both. Median of the pairs' ratios, and its interval at 95% (order statistics).

`goodput` runs a chain on four emulated devices; a killed device is back after 2 s. The rate is compared with
that of the whole fleet, and with that of the devices that were there (each measured in a run without faults).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import weft
from weft import zoo
from weft.chaos.fleets import TIERS, meshed
from weft.fleet.faults import Faults, Kind
from weft.fleet.fleet import Device, Fleet
from weft.runtime.run.results import Step

CPU_CLOCK = 2  # of a process by its number: what clock_getcpuclockid of the C library returns
FREE = meshed(Device("pi", data=True), Device("nuc", "edge"), Device("cloud", "cloud"))
APART_S, BACK_S = 15.0, 2.0
SKIP = 40  # minibatches at the beginning that are not measured
OnLoss = Literal["recover", "stop"]
Make = Callable[[], tuple[nn.Module, Any, dict[str, Any]]]


def processes() -> list[int]:
    """This process and all that it has started, also by others."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, ahead = [], [os.getpid()]
    while ahead:
        found.append(ahead.pop())
        ahead += parents.get(found[-1], [])
    return sorted(found)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process: the kernel's own clock of it, which is finer than the ticks of /proc."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:  # it has ended
        return 0.0


@dataclass
class Meter:
    """Calls `look` at these minibatches."""

    at: list[int]
    look: Callable[[int], None]
    times: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        self.times.append((time.monotonic(), step.done))
        while self.at and step.done >= self.at[0]:
            self.look(self.at.pop(0))


# --- what readiness costs ----------------------------------------------------------------------------


def small() -> tuple[nn.Module, Any, dict[str, Any]]:
    return zoo.build("lenet5"), "mnist5k", {"batch": 64}


def large() -> tuple[nn.Module, Any, dict[str, Any]]:
    net = nn.Sequential(nn.Linear(256, 896), nn.ReLU(), nn.Linear(896, 896), nn.ReLU(), nn.Linear(896, 640),
                        nn.ReLU(), nn.Linear(640, 10))  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, 256, generator=draw), torch.randint(0, 10, (512,), generator=draw)

    def data(step: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(step * 64, step * 64 + 64) % 512
        return x[rows], y[rows]

    return net, data, {"batch": 64, "optimizer": "adam", "lr": 1e-4}


MAKES: dict[str, Make] = {"small": small, "large": large}
STEPS = {"small": 1000, "large": 400}


def spent(make: Make, on_loss: OnLoss, steps: int) -> float:
    """CPU seconds of all processes, from one minibatch to another."""
    seen: list[float] = []
    torch.manual_seed(0)
    module, data, more = make()
    meter = Meter([SKIP, steps - 5], lambda _: seen.append(sum(map(cpu_s, processes()))))
    weft.train(module, data, nn.CrossEntropyLoss(), fleet=FREE, strategy="chain", steps=steps, local=True,
               options={"devices": "pi,nuc,cloud"}, on_loss=on_loss, on_progress=meter, deadline=120.0,
               patience=10.0, **more)  # fmt: skip
    return seen[1] - seen[0]


def started(name: str, on_loss: OnLoss, steps: int, core: int) -> subprocess.Popen[str]:
    """The same in a process of its own, with all that it starts on one core."""
    command = [sys.executable, __file__, "one", "--only", name, "--on-loss", on_loss]
    return subprocess.Popen(
        [*command, "--steps", str(steps)], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip


def together(name: str, steps: int, cores: tuple[int, int]) -> tuple[float, float]:
    """CPU seconds with `recover` and with `stop`, of two runs at the same time."""
    kinds: tuple[OnLoss, OnLoss] = ("recover", "stop")
    runs = [started(name, kind, steps, core) for kind, core in zip(kinds, cores, strict=True)]
    said = [run.communicate()[0].split() for run in runs]
    if any(run.returncode for run in runs):
        raise SystemExit(f"a run of {name} failed")
    return float(said[0][-1]), float(said[1][-1])


def cost(pairs: int, seconds: float, only: str, steps: int | None) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("the two runs of a pair need a core each, and there is one")
    for name in MAKES:
        if only not in ("", name):
            continue
        ratios = []
        begin = time.monotonic()
        for number in range(pairs):
            length = steps or STEPS[name]
            rounds = [together(name, length, (cores[k], cores[1 - k])) for k in (0, 1)]
            recover, stop = (sum(values) for values in zip(*rounds, strict=True))
            ratios.append(recover / stop)
            print(f"{name} {number}: recover {recover:.2f} s, stop {stop:.2f} s of CPU time, "
                  f"ratio {ratios[-1]:.3f}, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
            if time.monotonic() - begin > seconds:
                break
        print(
            f"{name}: median ratio {statistics.median(ratios):.3f}, {interval(ratios)}", flush=True
        )


def interval(ratios: list[float]) -> str:
    """Of the median, at 95% or a little more: the k-th smallest to the k-th largest."""
    ordered, count = sorted(ratios), len(ratios)
    below, chance, k = 0.0, 0.5**count, 0
    while below + chance <= 0.025 and k < count:  # at most k values are below the median
        below += chance
        chance *= (count - k) / (k + 1)
        k += 1
    if k == 0:
        return f"{count} pairs are too few for an interval; {ordered[0]:.3f} to {ordered[-1]:.3f}"
    return f"95% interval {ordered[k - 1]:.3f} to {ordered[-k]:.3f} ({count} pairs)"


# --- what grows --------------------------------------------------------------------------------------


def flat(steps: int) -> None:
    """One line for each process: what it has at a sixth of the run, in the middle and at the end."""
    rows: dict[int, dict[int, tuple[int, int, int]]] = {}

    def look(step: int) -> None:
        rows[step] = {pid: sizes(pid) for pid in processes()}

    at = [steps // 6, steps // 2, steps - 10]
    torch.manual_seed(0)
    module, data, more = small()
    fleet = meshed(*(Device(d.name, d.tier, gflops=2.0, data=d.data) for d in FREE.devices))
    weft.train(module, data, nn.CrossEntropyLoss(), fleet=fleet, strategy="chain", steps=steps, local=True,
               options={"devices": "pi,nuc,cloud"}, on_progress=Meter([*at], look), **more)  # fmt: skip
    print(f"{'process':<24} {'':>10}" + "".join(f"{f'at {step}':>12}" for step in at))
    for pid in rows[at[0]]:
        name = "the run" if pid == os.getpid() else f"started {pid}"
        for place, what in enumerate(("memory kB", "threads", "descriptors")):
            values = [rows[step].get(pid, (0, 0, 0))[place] for step in at]
            print(
                f"{name:<24} {what:>10}" + "".join(f"{value:>12}" for value in values), flush=True
            )


def sizes(pid: int) -> tuple[int, int, int]:
    """Resident memory of its own in kB, threads, file descriptors."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        own = int(status["RssAnon"].split()[0])
        return own, int(status["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, KeyError):  # it has ended, or was not reaped yet
        return 0, 0, 0


# --- goodput -----------------------------------------------------------------------------------------


def rate(fleet: Fleet, steps: int, script: Faults | None = None) -> tuple[float, list[Any]]:
    """Minibatches a second, from minibatch SKIP on, and the faults that came."""
    torch.manual_seed(0)
    meter = Meter([], lambda _: None)
    result = weft.train(zoo.build("lenet5"), "mnist5k", nn.CrossEntropyLoss(), fleet=fleet, strategy="chain",
                        steps=steps, batch=16, local=True, faults=script, on_progress=meter)  # fmt: skip
    times = [(at, done) for at, done in meter.times if done >= SKIP]
    new = {
        done: at for at, done in reversed(times)
    }  # when a minibatch was there for the first time
    first, last = min(new), max(new)
    return (last - first) / (new[last] - new[first]), result.faults


def goodput(kills: int) -> None:
    step_s = 0.03
    devices = tuple(
        Device(d.name, d.tier, gflops=(d.gflops or 1.0) * SCALE, data=d.data) for d in TIERS.devices
    )
    whole = Fleet(devices, TIERS.link)
    full, _ = rate(whole, 300)
    step_s = 1 / full
    without = {
        d.name: rate(whole.within(frozenset(whole.names) - {d.name}), 200)[0]
        for d in devices if not d.data
    }  # fmt: skip
    script = Faults(seed=1)
    for number in range(1, kills + 1):
        script = script.kill(step=SKIP + round(number * APART_S / step_s)).restart(after_s=BACK_S)
    steps = SKIP + round((kills + 1) * APART_S / step_s)
    found, faults = rate(whole, steps, script)
    killed = [fault for fault in faults if fault.kind == Kind.kill]
    seconds = (steps - SKIP) / found
    away = {fault.device: without[fault.device] for fault in killed}
    possible = _possible(full, away, [fault.device for fault in killed], seconds)
    print(f"undisturbed {full:.1f} a second; without one device: "
          + ", ".join(f"{name} {value:.1f}" for name, value in without.items()))  # fmt: skip
    for fault in killed:
        print(
            f"kill {fault.device} at {fault.step}: part {fault.had_part}, recovered in {fault.recovered_s} s"
        )
    print(
        f"{len(killed)} kills in {seconds:.0f} s: {found:.1f} a second; "
        f"goodput {found / full:.1%} of the whole fleet's rate, "
        f"{found / possible:.1%} of the rate that was possible; load {os.getloadavg()[0]:.1f}"
    )


SCALE = 4.0  # LeNet-5 is larger than the networks that these fleets are for


def _possible(
    full: float, without: Mapping[str, float], killed: list[str], seconds: float
) -> float:
    """The mean rate, if each killed device is away for two seconds and nothing else is lost."""
    lost = sum(BACK_S * (full - min(full, without[name])) for name in killed)
    return full - lost / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", default="cost", choices=("cost", "one", "flat", "goodput")
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=1200.0, help="cost: no new pair after so long"
    )
    parser.add_argument("--only", default="", choices=("", "small", "large"), help="cost")
    parser.add_argument("--steps", type=int, default=None, help="minibatches of a run")
    parser.add_argument("--on-loss", default="recover", choices=("recover", "stop"), help="one")
    parser.add_argument("--kills", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "cost":
        cost(given.pairs, given.seconds, given.only, given.steps)
    elif given.what == "one":  # of a pair
        print(spent(MAKES[given.only or "small"], given.on_loss, given.steps or 400))
    elif given.what == "flat":
        flat(given.steps or 3000)
    else:
        goodput(given.kills)


if __name__ == "__main__":
    main()
