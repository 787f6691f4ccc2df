"""Many draws and one table: how many were refused, planned and run, and which rules were violated.

report = weave(seed=1, draws=100, runs=5)
print(report.table())
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from weft.loom.checks import examine
from weft.loom.draw import Draw, as_text, draw, draw_run
from weft.loom.planned import Outcome
from weft.loom.shrink import shrink


@dataclass
class Failure:
    """A draw that violated a rule, after shrinking."""

    check: str
    says: str
    draw: Draw

    @property
    def command(self) -> str:
        return f"python benchmarks/loom.py --draw '{as_text(self.draw)}'"


@dataclass
class Report:
    """The result of a series of draws."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    by_strategy: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # of CPU time, by strategy
    digest: str = ""  # of all plans: equal in two processes, or planning is not deterministic

    def table(self) -> str:
        lines = [f"{name:24}{count:8}" for name, count in self.counts.items()]
        lines += [
            "",
            f"{'strategy':16}{'planned':>9}{'refused':>9}{'ran':>6}{'violated':>10}{'ms':>8}",
        ]
        for name, row in sorted(self.by_strategy.items()):
            each = 1000 * self.seconds[name] / max(row.total() - row["ran"] - row["violated"], 1)
            lines.append(
                f"{name:16}{row['planned']:9}{row['refused']:9}{row['ran']:6}{row['violated']:10}{each:8.1f}"
            )
        lines += ["", "refused:"]
        lines += [f"{count:8}  {why}" for why, count in self.refusals.most_common(40)]
        lines += ["", f"violations: {sum(self.violations.values())}"]
        lines += [f"{count:8}  {check}" for check, count in self.violations.most_common()]
        for failure in self.failures:
            lines += ["", f"{failure.check}: {failure.says}", f"  {failure.command}"]
        lines += ["", f"digest of all plans: {self.digest}"]
        return "\n".join(lines)


def weave(
    seed: int,
    draws: int,
    runs: int = 0,
    only: tuple[str, ...] = (),
    *,
    show: Callable[[str], None] | None = None,
    shrink_up_to: int = 12,
    first: int = 0,
) -> Report:
    """Draws, checks and counts. The first few failures of each kind are shrunk."""
    report = Report()
    digest = hashlib.sha256()
    for number in range(first, first + draws + runs):
        planned = number < first + draws
        one = draw(seed, number, only) if planned else draw_run(seed, number - draws, only)
        begin = time.process_time()
        outcome = examine_whole(one)
        spent = report.seconds.get(one.strategy, 0.0) + time.process_time() - begin
        report.seconds[one.strategy] = spent
        _count(report, one, outcome)
        if outcome.plan is not None:
            plain = msgspec.structs.replace(outcome.plan, planning_s=0.0)
            digest.update(msgspec.json.encode(plain) if planned else b"")
        for violation in {v.check: v for v in outcome.violations}.values():
            kind = f"{violation.check} ({one.strategy})"
            report.violations[kind] += 1
            if report.violations[kind] <= 2 and len(report.failures) < shrink_up_to:
                report.failures.append(_shrunk(one, violation.check))
                if show:
                    show(f"{violation.check}: {violation.says}\n  {report.failures[-1].command}")
        if show and (number + 1) % 100 == 0:
            show(f"{number + 1 - first} of {draws + runs}, {report.violations.total()} violations")
    report.digest = digest.hexdigest()[:16]
    return report


def examine_whole(one: Draw) -> Outcome:
    """Plans and checks a draw and, if it has `steps`, really runs it."""
    outcome = examine(one)
    if one.steps == 0 or outcome.plan is None or outcome.violations:
        return outcome
    from weft.loom.running import run_and_check

    return run_and_check(one)


def _shrunk(one: Draw, check: str) -> Failure:
    def fails(smaller: Draw) -> bool:
        return any(v.check == check for v in examine_whole(smaller).violations)

    small = shrink(one, fails, most=30 if one.steps else 400)
    says = next((v.says for v in examine_whole(small).violations if v.check == check), "gone again")
    return Failure(check, says, small)


def _count(report: Report, one: Draw, outcome: Outcome) -> None:
    row = report.by_strategy.setdefault(one.strategy, Counter())
    report.counts["draws"] += 1
    if outcome.refused:
        report.counts["refused"] += 1
        report.refusals[reason_class(outcome.refused)] += 1
        row["refused"] += 1
    if outcome.plan is not None:
        report.counts["planned and simulated"] += 1
        row["planned"] += 1
    if outcome.ran:
        report.counts["really run"] += 1
        row["ran"] += 1
    if outcome.violations:
        row["violated"] += 1


def reason_class(message: str) -> str:
    """A refusal without its names and numbers, so that equal reasons count together."""
    short = re.sub(r"'[^']*'|\b[dmxp]\d+\b|\[[^\]]*\]|\([^)]*\)", "*", message)
    short = re.sub(r"--set (\w+)=\S+", r"--set \1=*", short)
    short = re.sub(r"\d[\d.e+-]*", "N", short)
    return short[:90]


def to_stderr(text: str) -> None:
    """Prints progress on stderr."""
    print(text, file=sys.stderr, flush=True)
