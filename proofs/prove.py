"""All proofs, one table each; a run that was stopped goes on where it was.

    python proofs/prove.py                            everything that has not passed with this code
    python proofs/prove.py --only matrix,docs         some proofs;  --match chain: some cases
    python proofs/prove.py --tenth SEED               a seeded tenth of every proof
    python proofs/prove.py --record                   writes the cells of the matrix that passed
    python proofs/prove.py --list                     what there is, without running it

Outcomes are kept in .proof/RESULTS.jsonl by case and by the code that they belong to; --fresh forgets them.
Exit code 1 where a case failed, or where some are left because the time is over.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from proofs import chaos, control, docs, fuzz, long_tests, loom, matrix, wheel  # noqa: E402
from proofs.book import Book, table  # noqa: E402
from proofs.case import Case, tenth  # noqa: E402
from proofs.worker import Worker, work  # noqa: E402

PROOFS = {
    "matrix": matrix.cases,
    "docs": docs.cases,
    "tests": long_tests.cases,
    "chaos": chaos.cases,
    "loom": loom.cases,
    "wheel": wheel.cases,
    "fuzz": fuzz.cases,
    "control": control.cases,
}


def main() -> int:
    given = _arguments()
    chosen = given.only.split(",") if given.only else list(PROOFS)
    unknown = sorted(set(chosen) - set(PROOFS))
    if unknown:
        print(f"no proof is called {', '.join(unknown)}; there are {', '.join(PROOFS)}")
        return 2
    cases = [case for name in chosen for case in PROOFS[name]()]
    if given.worker:
        work(cases)
        return 0
    if given.match:
        cases = [case for case in cases if given.match in case.name]
    if given.tenth is not None:
        cases = tenth(cases, given.tenth)
    if given.list:
        print("\n".join(f"{case.proof}: {case.name}" for case in cases))
        return 0
    book = Book(fresh=given.fresh)
    due = book.due(cases)
    print(f"{len(cases)} cases, {len(cases) - len(due)} have passed before", file=sys.stderr)
    _try_all(due, book, given.jobs, given.minutes * 60)
    for name in dict.fromkeys(case.proof for case in cases):
        print(f"\n{table(name, [c for c in cases if c.proof == name], book)}")
    if given.record:
        print(f"\n{matrix.record(book)}")
    return _verdict(cases, book)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="proofs, with commas")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--tenth", default=None, metavar="SEED")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=3, help="cases at a time; many wait for links")
    parser.add_argument("--minutes", type=float, default=60.0, help="then nothing more is begun")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _try_all(due: Sequence[Case], book: Book, jobs: int, limit_s: float) -> None:
    """No case begins that would not end before the limit, should it take all of its own time. So cases that
    may take long begin first: at the end of the hour there would be no room for them."""
    end = time.monotonic() + limit_s
    waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in sorted(due, key=lambda case: -case.limit_s):
        waiting.put(case)

    def keep_busy() -> None:
        worker = Worker()
        try:
            while True:
                case = waiting.get_nowait()
                if time.monotonic() + case.limit_s > end:
                    continue
                outcome = worker.tried(case)
                book.add(outcome)
                line = f"{case.proof}: {case.name}: {outcome.verdict} ({outcome.seconds:.1f} s)"
                print(f"{line} {outcome.says if outcome.verdict != 'passed' else ''}".rstrip(),
                      file=sys.stderr, flush=True)  # fmt: skip
        except queue.Empty:
            return
        finally:
            worker.close()

    threads = [threading.Thread(target=keep_busy, daemon=True) for _ in range(max(1, jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _verdict(cases: Sequence[Case], book: Book) -> int:
    outcomes = [book.of(case) for case in cases]
    left = [case.name for case, outcome in zip(cases, outcomes, strict=True) if outcome is None]
    if left:
        print(f"\nthe time is over; {len(left)} cases are left: run it again to go on")
    failed = [outcome for outcome in outcomes if outcome and outcome.verdict == "failed"]
    return 1 if left or failed else 0


if __name__ == "__main__":
    sys.exit(main())
