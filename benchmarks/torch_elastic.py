"""torchrun and torch.distributed.pipelining (1F1B over gloo) under `kill -9`, with elastic restarts.

    python benchmarks/torch_elastic.py --runs 3 --kills 2

Three ranks of a small pipeline on one machine. Each rank writes a checkpoint of its stage every ten steps, as
users of torchrun do; a restarted group takes up the newest checkpoint that all stages have. A random rank is
killed at random moments. A run is *recovered* if it ends with all its steps, *lost* if torchrun ends with an
error, and a *hang* if it has not ended after the limit. The recovery time runs from the signal to the first
new step. The weights are compared with those of a run without kills. `chaos.py` does the same to Weft.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANKS, BATCH, EVERY, PAUSE_S = 3, 16, 10, 0.02


def rank_main(folder: Path, steps: int) -> None:
    """One rank; torchrun starts it again after a loss."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    stages = [
        nn.Sequential(nn.Linear(20, 32), nn.Tanh()),
        nn.Sequential(nn.Linear(32, 32), nn.Tanh()),
        nn.Linear(32, 10),
    ]
    module = stages[rank]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    first = newest(folder)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    if first:
        saved = torch.load(folder / f"{first}-{rank}.pt")
        module.load_state_dict(saved["weights"])
        optimizer.load_state_dict(saved["memory"])
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.CrossEntropyLoss())
    for step in range(first, steps):
        draw = torch.Generator().manual_seed(step)
        x, y = (
            torch.randn(BATCH, 20, generator=draw),
            torch.randint(0, 10, (BATCH,), generator=draw),
        )
        if rank == 0:
            time.sleep(PAUSE_S)  # a step takes as long as in chaos.py
            schedule.step(x)
        elif rank == RANKS - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if rank == RANKS - 1:
            with (folder / "steps").open("a") as file:
                file.write(f"{step} {time.time()}\n")
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            path = folder / f"{step + 1}-{rank}.pt"
            torch.save(
                {"weights": module.state_dict(), "memory": optimizer.state_dict()}, f"{path}.new"
            )
            os.replace(f"{path}.new", path)
    dist.barrier()
    dist.destroy_process_group()


def newest(folder: Path) -> int:
    """The newest step of which all ranks have a checkpoint."""
    found: dict[int, int] = {}
    for path in folder.glob("*-*.pt"):
        step = int(path.stem.partition("-")[0])
        found[step] = found.get(step, 0) + 1
    return max((step for step, count in found.items() if count == RANKS), default=0)


def done(folder: Path) -> list[tuple[int, float]]:
    path = folder / "steps"
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(row[0]), float(row[1])) for row in rows if len(row) == 2]


def one(
    folder: Path, steps: int, at: list[int], dice: random.Random, limit_s: float
) -> dict[str, object]:
    """One run of torchrun, in which a random rank is killed when each of these steps is done."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
               f"--max-restarts={len(at) + 1}", "--monitor-interval=0.1", str(Path(__file__).resolve()),
               "--rank", str(folder), "--steps", str(steps)]  # fmt: skip
    begin, kills = time.time(), list[float]()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        left = list(at)
        while process.poll() is None and time.time() - begin < limit_s:
            time.sleep(0.01)
            if left and max((step for step, _ in done(folder)), default=-1) >= left[0]:
                left.pop(0)
                victim = folder / f"pid-{dice.randrange(RANKS)}"
                try:
                    os.kill(int(victim.read_text()), signal.SIGKILL)
                    kills.append(time.time())
                except (ProcessLookupError, ValueError):  # the ranks are just being restarted
                    left.insert(0, at[-1 - len(left)])
        code = process.poll()
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for path in folder.glob("pid-*"):  # ranks have sessions of their own
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(path.read_text()), signal.SIGKILL)
    rows = done(folder)
    outcome = "hang" if code is None else "recovered" if newest(folder) == steps else "lost"
    took = []
    for kill in kills:
        before = max((step for step, when in rows if when <= kill), default=-1)
        new = [when for step, when in rows if when > kill and step > before]
        took.append(min(new) - kill if new else None)
    repeated = len(rows) - len({step for step, _ in rows})
    why = "" if outcome == "recovered" else (folder / "log").read_text(errors="replace")[-1500:]
    return {"outcome": outcome, "kills": len(kills), "recovered_s": took, "repeated": repeated,
            "seconds": round(time.time() - begin, 1), "why": why}  # fmt: skip


def difference(one: Path, other: Path, steps: int) -> float:
    """The largest of any weight."""
    worst = 0.0
    for rank in range(RANKS):
        mine, theirs = (torch.load(path / f"{steps}-{rank}.pt")["weights"] for path in (one, other))
        worst = max(worst, *(float((mine[name] - theirs[name]).abs().max()) for name in mine))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds until a run hangs")
    given = parser.parse_args()
    if given.rank:
        rank_main(given.rank, given.steps)
        return
    dice = random.Random(given.seed)
    rows = []
    with tempfile.TemporaryDirectory(prefix="torch-elastic-") as top:
        calm = Path(top) / "calm"
        calm.mkdir()
        assert one(calm, given.steps, [], dice, given.limit)["outcome"] == "recovered"
        for number in range(given.runs):
            folder = Path(top) / str(number)
            folder.mkdir()
            stretch = given.steps // (given.kills + 1)
            at = [dice.randrange(k * stretch + 5, (k + 1) * stretch) for k in range(given.kills)]
            row = one(folder, given.steps, at, dice, given.limit)
            if row["outcome"] == "recovered":
                row["difference"] = difference(folder, calm, given.steps)
            rows.append(row)
            print(json.dumps({**row, "load": round(os.getloadavg()[0], 1)}), flush=True)
    times = [s for row in rows for s in row["recovered_s"] if s is not None]  # type: ignore[attr-defined]
    ends = [row["outcome"] for row in rows]
    print(
        f"{len(rows)} runs: "
        + ", ".join(f"{ends.count(end)} {end}" for end in ("recovered", "lost", "hang"))
    )
    if times:
        print(
            f"recovery: median {statistics.median(times):.2f} s, longest {max(times):.2f} s of {len(times)}"
        )


if __name__ == "__main__":
    main()
