"""`weft compare` on networks that nobody here wrote, on every example fleet: does it answer, and how soon?

    python benchmarks/compare.py                      20 networks, all fleets of examples/fleets
    python benchmarks/compare.py gpt2 resnet          those whose names contain one of these words
    python benchmarks/compare.py --fleet city --infer

Each network is captured once, as the command does it; each fleet is then compared with the command's limit.
A line shows the processor seconds of capture, and of the median and the slowest fleet. A case is bad if a
strategy ended in an internal error, if there is no recommendation (or, where no plan is exact, no reason in
words), or if capture and comparison together take more than 10 s of processor time. The start of Python and
the import of the network's library are not counted. The exit code is 1 if a case is bad.

The networks come from the folder WEFT_MODELS, as in benchmarks/models.py; the list was fixed before the
first of them was tried. Each is taken as its library makes it; where that is refused, the next variant of the
folder is taken, and the line says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from weft.errors import InputError
from weft.fleet.fleet import Fleet
from weft.graph.capture.module import capture
from weft.graph.network import Graph
from weft.planning.advise import LIMIT_S, advise, why_none
from weft.planning.compare import compare
from weft.planning.task import make_task
from weft.plans.derive import derive_profile
from weft.plans.plan import Mode
from weft.report.tables import compare_table, render
from weft.zoo.loading import checked_example

FLEETS = Path(__file__).resolve().parent.parent / "examples" / "fleets"
NETWORKS = (
    "hf_bert_cls", "hf_distilbert", "hf_gpt2", "hf_llama", "hf_vit", "hf_t5", "hf_segformer", "hf_detr",
    "timm_resnet18", "timm_mobilenetv3_small_050", "timm_efficientnet_b0", "timm_densenet121",
    "timm_inception_v3", "timm_convnext_atto", "timm_vit_tiny_patch16_224",
    "timm_swin_tiny_patch4_window7_224", "tv_mobilenet_v2", "tv_googlenet", "tv_vit_b_16", "smp_unet",
)  # fmt: skip
MOST_S = 10.0


@dataclass
class Case:
    """One network on one fleet."""

    network: str
    fleet: str
    layers: int
    seconds: float  # of processor time, without capture
    slowest: str  # the strategy that took longest, and its seconds
    best: str  # the recommendation; empty if there is none
    wrong: str  # internal errors; empty if there are none
    left_out: str  # strategies that took too long


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of networks' names")
    parser.add_argument("--fleet", default="", help="part of a fleet file's name")
    parser.add_argument("--infer", action="store_true", help="answers in place of training steps")
    parser.add_argument("--json", type=Path, help="a file that takes all cases")
    parser.add_argument("--show", action="store_true", help="print the tables")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    mode: Mode = "infer" if given.infer else "train"
    known = builders()
    fleets = sorted(path for path in FLEETS.glob("*.toml") if given.fleet in path.name)
    cases: list[Case] = []
    bad = 0
    print(f"{'network':36}{'layers':>7}{'capture':>9}{'median':>9}{'slowest':>9}  on")
    for name in NETWORKS:
        if given.words and not any(word in name for word in given.words):
            continue
        begin = time.process_time()
        graph, words = captured(known[name], mode)
        spent = time.process_time() - begin
        if graph is None:
            print(f"{name:36}not captured: {words}")
            bad += 1
            continue
        mine = [compared(name, graph, path, mode, given.show) for path in fleets]
        bad += sum(not good(case, spent) for case in mine)
        print(line(name, mine, spent, words), flush=True)
        cases += mine
    if given.json:
        given.json.write_text(json.dumps([asdict(case) for case in cases], indent=1) + "\n")
    print(f"{len(cases)} cases, {bad} of them bad")
    return 1 if bad else 0


def builders() -> Any:
    """The models of the folder, by name. Raises SystemExit with words if they are not there."""
    usual = Path(__file__).resolve().parent.parent.parent / "shared" / "models"
    path = Path(os.environ.get("WEFT_MODELS", usual)) / "models.py"
    if not path.exists():
        print(f"skipped: there is no {path}; set WEFT_MODELS to its folder")
        raise SystemExit(0)
    place = importlib.util.spec_from_file_location("networks_of_others", path)
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module.MODELS


def captured(build: Any, mode: Mode) -> tuple[Graph | None, str]:
    """The first variant that is captured, and what was refused before it."""
    torch.manual_seed(0)
    refused = []
    for variant, module, inputs, _, _ in build():
        try:
            graph = capture(module, checked_example(variant, inputs), name="net", mode=mode)
            return graph, f"as {variant!r}; {'; '.join(refused)}" if refused else ""
        except InputError as error:
            refused.append(f"{variant!r} is refused: {' '.join(str(error).split())[:150]}")
    return None, "; ".join(refused)


def compared(name: str, graph: Graph, path: Path, mode: Mode, show: bool) -> Case:
    """What the command does after it has captured the network."""
    marks: list[tuple[str, float]] = []
    begin = time.process_time()
    fleet = Fleet.load(path)
    task = make_task(derive_profile(graph, fleet), fleet, mode=mode, graph=graph)
    wrong: list[str] = []
    rows = compare(
        task,
        limit_s=LIMIT_S,
        on_begin=lambda strategy, done, count: marks.append((strategy, time.process_time())),
        on_error=lambda strategy, error: wrong.append(
            f"{strategy}: {type(error).__name__} {error}"
        ),
    )
    ends = [at for _, at in marks[1:]] + [time.process_time()]
    best = advise(rows, task)
    text = render(compare_table(rows, f"{name} on {path.name}", best, why_none(rows, task)))
    spent = time.process_time() - begin
    if show:
        print(text)
    took = {strategy: end - at for (strategy, at), end in zip(marks, ends, strict=True)}
    slowest = max(took, key=lambda strategy: took[strategy])
    late = [row.strategy for row in rows if row.why_not and "of computing" in row.why_not]
    return Case(
        name, path.stem, len(graph.layers), round(spent, 2), f"{slowest} {took[slowest]:.1f} s",
        best.why if best is not None else why_none(rows, task), "; ".join(wrong), ", ".join(late),
    )  # fmt: skip


def good(case: Case, capture_s: float) -> bool:
    return bool(case.best) and not case.wrong and case.seconds + capture_s <= MOST_S


def line(name: str, cases: list[Case], capture_s: float, words: str) -> str:
    """One network on all fleets, and under it what is bad."""
    slowest = max(cases, key=lambda case: case.seconds)
    median = statistics.median(case.seconds for case in cases)
    text = f"{name:36}{cases[0].layers:>7}{capture_s:>8.1f}s{median:>8.1f}s{slowest.seconds:>8.1f}s"
    text += f"  {slowest.fleet} ({slowest.slowest})"
    for case in cases:
        if case.wrong or not case.best:
            text += f"\n    {case.fleet}: {case.wrong or 'no recommendation'}"
        if case.left_out:
            text += f"\n    {case.fleet}: too long: {case.left_out}"
        if case.seconds + capture_s > MOST_S:
            text += f"\n    {case.fleet}: {case.seconds + capture_s:.1f} s; {case.slowest}"
    return text + (f"\n    {words}" if words else "")


if __name__ == "__main__":
    sys.exit(main())
