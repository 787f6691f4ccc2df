"""Every training strategy, while its devices are killed, silenced, cut off and restarted at random moments.

    python benchmarks/chaos.py --faults 12                        every strategy, a few faults each
    python benchmarks/chaos.py --only chain,edgemove+ --scenes kill,coordinator --seed 7 --faults 100
    python benchmarks/chaos.py --append chaos.jsonl               one more line for every run
    python benchmarks/chaos.py --jobs 2 --references calm         two strategies at a time; runs without any
                                                                  fault are kept for the next seeds
    python benchmarks/chaos.py --table chaos.jsonl                the table of what was collected

Small networks on small fleets, so that a run takes some seconds; several faults a run; killed devices come
back. A line of the file has one run: its seed and number (which give its script), every fault that came with
its outcome, and how far the final weights are from those of a run without faults. Exit code 1 if a run
hangs, is lost, or ends with other weights than it must have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from proofs.chaos import training, trial_of  # noqa: E402
from weft.chaos.chaos import NEEDS_FOLDER, Asked, chaos  # noqa: E402
from weft.chaos.report import Report  # noqa: E402
from weft.chaos.scenes import Scene  # noqa: E402
from weft.errors import WeftError  # noqa: E402
from weft.plans import registry  # noqa: E402
from weft.plans.protocols import GO_BACK  # noqa: E402

WRITING = threading.Lock()  # a line of the file at a time
MOST_OF_A_SWARM, LEAST_STEPS = 3, 100


def size_of(name: str, given: argparse.Namespace) -> tuple[int, int]:
    """How many minibatches and how many scenes a run has. A swarm takes no device back: when it has lost
    three of five, no further fault can come, and the rest of a long run would show nothing."""
    if "comes back" not in registry.get(name).refuses or given.each <= MOST_OF_A_SWARM:
        return given.steps, given.each
    return max(LEAST_STEPS, given.steps * MOST_OF_A_SWARM // given.each), MOST_OF_A_SWARM


def run(name: str, given: argparse.Namespace) -> bool:
    """All faults of one strategy; False where something was lost."""
    steps, each = size_of(name, given)
    trial = trial_of(name, steps)
    scenes = [Scene(word) for word in given.scenes.split(",")]
    if not Asked(trial).saves:
        scenes = [scene for scene in scenes if scene not in NEEDS_FOLDER]
    if not scenes:
        return True
    undisturbed = 1 if registry.get(name).recovery == GO_BACK else given.undisturbed
    references = Path(given.references).resolve() if given.references else None
    asked = Asked(trial, tuple(scenes), given.seed, each, undisturbed, given.limit, references)

    def keep(report: Report) -> None:
        """A line for each run, as soon as it has ended: a series that is cut off keeps what it has found."""
        row = report.rows[-1]
        words = f"{name} {row.run}: {row.outcome.value}"
        print(f"{words} ({row.seconds:.0f} s) {row.error}", file=sys.stderr, flush=True)
        plain: dict[str, Any] = msgspec.to_builtins(row)
        if not row.error and not row.unequal:
            plain.pop("events", None)
        line = {"strategy": name, "seed": given.seed, "scenes": given.scenes, "steps": steps,
                "each": each, "load": round(os.getloadavg()[0], 1),
                "unequal": row.unequal, "rounding": report.rounding,
                "undisturbed_losses": report.undisturbed_losses, **plain}  # fmt: skip
        if given.append:
            with WRITING, Path(given.append).open("a") as file:
                file.write(json.dumps(line) + "\n")

    report = chaos(asked, given.faults, keep, given.first)
    print(json.dumps({k: v for k, v in report.document().items() if k != "rows"}), flush=True)
    return not report.failed


def tried(name: str, given: argparse.Namespace) -> bool:
    """The same; a strategy that cannot be tried does not keep the others from it."""
    try:
        return run(name, given)
    except WeftError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        return False


def table(path: Path) -> str:
    """One line for each strategy and one for each kind of fault, of all that was collected."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return "\n\n".join((_by_strategy(lines), _by_kind(lines)))


def _by_strategy(lines: list[dict[str, Any]]) -> str:
    rows = [
        "| strategy | runs | kills | other faults | hangs | lost | resumed | recovery median | p95 "
        "| repeated | largest difference | loss, undisturbed loss | above noise |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(line["strategy"] for line in lines):
        mine = [line for line in lines if line["strategy"] == name]
        faults = [fault for line in mine for fault in line["faults"]]
        kinds = Counter(fault["kind"] for fault in faults)
        ends = Counter(line["outcome"] for line in mine)
        others = sum(kinds.values()) - kinds["kill"] - kinds["restart"]
        exact = any(line.get("exact") for line in mine)
        off = max((line["difference"] for line in mine if line.get("difference") is not None),
                  default=None)  # fmt: skip
        rows.append(
            f"| `{name}` | {len(mine)} | {kinds['kill']} | {others} | {ends['hang']} | {ends['lost']} | "
            f"{ends['resumed']} | {_recovery(faults)} | {sum(line.get('repeated', 0) for line in mine)} | "
            f"{f'{off:.0e}' if exact and off is not None else '-'} | {_noise(mine)} |"
        )
    return "\n".join(rows)


def _by_kind(lines: list[dict[str, Any]]) -> str:
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        for fault in line["faults"]:
            kind = "coordinator" if fault["device"] == "@coordinator" else fault["kind"]
            kinds[f"{kind}, during {fault['during']}" if fault.get("during") else kind].append(
                fault
            )
    rows = [
        "| fault | came | hit a device with a part | recovery median | p95 |",
        "|---|---|---|---|---|",
    ]
    for kind, faults in sorted(kinds.items()):
        if kind != "restart":
            hit = sum(bool(f.get("had_part")) or f["device"] == "@coordinator" for f in faults)
            rows.append(f"| {kind} | {len(faults)} | {hit} | {_recovery(faults)} |")
    return "\n".join(rows)


def _recovery(faults: list[dict[str, Any]]) -> str:
    seconds = sorted(f["recovered_s"] for f in faults if f.get("recovered_s") is not None)
    if not seconds:
        return "- | -"
    p95 = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
    return f"{statistics.median(seconds):.2f} s | {p95:.2f} s"


def _noise(lines: list[dict[str, Any]]) -> str:
    """The losses with faults, the range of the seeds without, and how many of the former are above it."""
    seeds: dict[int, set[float]] = defaultdict(set)  # by minibatches of a run
    for line in lines:
        seeds[line["steps"]].update(line["undisturbed_losses"])
    losses = [
        (line["steps"], line["final_loss"]) for line in lines if line.get("final_loss") is not None
    ]
    if not losses:
        return "- | -"
    low, high = (end(loss for _, loss in losses) for end in (min, max))
    least, most = (end(loss for those in seeds.values() for loss in those) for end in (min, max))
    compared = [(steps, loss) for steps, loss in losses if len(seeds[steps]) > 1]
    above = sum(loss > max(seeds[steps]) for steps, loss in compared)
    words = f"{above} of {len(compared)}" if compared else "-"
    return f"{low:.2f} to {high:.2f}, {least:.2f} to {most:.2f} | {words}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="strategies, with commas")
    parser.add_argument(
        "--scenes", default="kill,silence,restart,two,recovery,cut,save,coordinator"
    )
    parser.add_argument("--faults", type=int, default=8, help="of each strategy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="minibatches of a run")
    parser.add_argument("--each", type=int, default=4, help="scenes in a run")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run")
    parser.add_argument("--undisturbed", type=int, default=5, help="runs for the range of the loss")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds until a run hangs")
    parser.add_argument("--jobs", type=int, default=1, help="strategies at a time")
    parser.add_argument("--references", default="", metavar="DIR", help="keeps runs without faults")
    parser.add_argument("--append", default="", metavar="FILE")
    parser.add_argument("--table", default="", metavar="FILE")
    given = parser.parse_args()
    if given.table:
        print(table(Path(given.table)))
        return 0
    names = given.only.split(",") if given.only else training()
    with ThreadPoolExecutor(given.jobs) as pool:
        try:
            return 0 if all([*pool.map(lambda name: tried(name, given), names)]) else 1
        finally:  # who ends the command does not wait for the strategies that have not begun
            pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    sys.exit(main())
