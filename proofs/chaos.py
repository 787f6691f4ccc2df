"""Chaos: a short run of every training strategy in which devices are killed, silenced and started again.

`benchmarks/chaos.py` does the same with many seeds. Here each strategy has one run with a few faults.
"""

from __future__ import annotations

from functools import partial

from proofs.case import ROOT, Case, check, digest_of, source_digest
from proofs.subjects import BATCH, RULE, SEED, pairs, small, subject_of
from weft.chaos.chaos import Asked, chaos
from weft.chaos.scenes import Scene
from weft.chaos.trial import Trial
from weft.fleet.parse import dump_fleet
from weft.plans import registry

SUBJECTS = ROOT / "proofs" / "subjects.py"
SCENES = (Scene.kill, Scene.silence, Scene.two, Scene.recovery, Scene.restart)
STEPS, EACH = 150, 3
LIMIT_S = 240.0


def training() -> list[str]:
    """All strategies that train."""
    return [name for name in registry.names() if "train" in registry.get(name).modes]


def trial_of(name: str, steps: int) -> Trial:
    """A small run of a strategy, on the fleet that fits it."""
    it = subject_of(registry.get(name))
    return Trial(
        model=f"{SUBJECTS}:drawn" if it.model is small else "cnn5",
        data=f"{SUBJECTS}:pairs" if it.data is pairs else str(it.data),
        fleet=dump_fleet(it.fleet), strategy=name, steps=steps, out="", batch=BATCH,
        optimizer=RULE.name, lr=RULE.lr, options={k: str(v) for k, v in it.options.items()},
        seed=SEED, look_every=10,
    )  # fmt: skip


def cases() -> list[Case]:
    folder = ROOT / "proofs"
    digest = digest_of(source_digest(), files=[folder / "chaos.py", folder / "subjects.py"])
    return [
        Case("chaos", name, partial(survives, name, number), LIMIT_S, digest)
        for number, name in enumerate(training())
    ]


def survives(name: str, number: int) -> str:
    """One run: it ends with all its minibatches, and with the right weights where these are determined."""
    scenes = [SCENES[(number + k) % len(SCENES)] for k in range(EACH)]
    report = chaos(Asked(trial_of(name, STEPS), tuple(scenes), seed=number, each=EACH), faults=1)
    (row,) = report.rows
    faults = [f"{fault.kind.value} {fault.device}" for fault in row.faults]
    check(not report.failed, f"{row.outcome.value} after {faults}: {row.error or row.difference}")
    check(bool(faults), "the run was over before any fault came")
    seconds = report.document()["recovery_s"]["median"]
    return f"{', '.join(faults)}; {row.repeated} repeated; recovery {seconds} s; off by {row.difference}"
