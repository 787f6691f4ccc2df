"""What a proof is made of: named cases with a limit of time, which pass, fail or are skipped in words."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Skip(Exception):
    """The case cannot be tried here; its words say why."""


class Broken(AssertionError):
    """What was promised does not hold."""


@dataclass(frozen=True)
class Case:
    """`run` returns a few words on what it saw; it raises where the promise does not hold."""

    proof: str
    name: str
    run: Callable[[], str]
    limit_s: float = 90.0
    digest: str = ""  # of all that the outcome depends on
    promised: bool = True  # False: nobody has claimed yet that it works

    @property
    def key(self) -> tuple[str, str, str]:
        return self.proof, self.name, self.digest


def digest_of(*texts: str, files: Iterable[Path] = ()) -> str:
    """Of texts and of files with their names."""
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode() + b"\0")
    for path in sorted(files):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def source_digest() -> str:
    """Of all of the package's code. Recorded proofs are left out: they follow from the outcome."""
    return digest_of(files=(ROOT / "src").rglob("*.py"))


def tenth(cases: Sequence[Case], seed: str) -> list[Case]:
    """A seeded tenth of every proof's promised cases, at least one, in their own order."""
    chosen: set[tuple[str, str]] = set()
    for proof in dict.fromkeys(case.proof for case in cases if case.promised):
        names = [case.name for case in cases if case.proof == proof and case.promised]
        count = max(1, round(len(names) / 10))
        drawn = random.Random(f"{seed} {proof}").sample(sorted(names), count)
        chosen |= {(proof, name) for name in drawn}
    return [case for case in cases if (case.proof, case.name) in chosen]


def check(holds: bool, words: str) -> None:
    if not holds:
        raise Broken(words)
