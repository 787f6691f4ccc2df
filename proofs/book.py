"""The book of outcomes: one line for each case that was tried, so that a stopped proof goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from proofs.case import ROOT, Case

BOOK = ROOT / ".proof" / "RESULTS.jsonl"
Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    proof: str
    name: str
    digest: str
    verdict: Verdict
    seconds: float
    says: str = ""


class Book:
    """Reads what is known; every further outcome is on disk before the next case begins."""

    def __init__(self, path: Path = BOOK, fresh: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str], Outcome] = {}
        if fresh:
            path.unlink(missing_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                outcome = Outcome(**json.loads(line))
            except (ValueError, TypeError):  # the last line of a run that was cut off
                continue
            self._known[outcome.proof, outcome.name, outcome.digest] = outcome

    def of(self, case: Case) -> Outcome | None:
        return self._known.get(case.key)

    def due(self, cases: Iterable[Case]) -> list[Case]:
        """Those that have not passed with the code as it is; a skipped case is tried again."""
        return [c for c in cases if (known := self.of(c)) is None or known.verdict != "passed"]

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self._known[outcome.proof, outcome.name, outcome.digest] = outcome
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")


def table(proof: str, cases: Sequence[Case], book: Book) -> str:
    """One proof: how many cases passed, and every other one by its name."""
    outcomes = {case.name: book.of(case) for case in cases}
    done = [o for o in outcomes.values() if o is not None]
    counts = {v: sum(o.verdict == v for o in done) for v in ("passed", "failed", "skipped")}
    seconds = sum(o.seconds for o in done)
    lines = [
        f"{proof}: {len(cases)} cases, {counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['skipped']} skipped, {len(cases) - len(done)} left ({seconds:.0f} s)"
    ]
    width = max((len(name) for name in outcomes), default=0)
    for name, outcome in outcomes.items():
        if outcome is None:
            lines.append(f"  {name:{width}}  left")
        else:
            lines.append(f"  {name:{width}}  {outcome.verdict:7} {outcome.seconds:6.1f} s  "
                         f"{outcome.says.splitlines()[0] if outcome.says else ''}")  # fmt: skip
    return "\n".join(lines)
