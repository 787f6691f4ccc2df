"""Cases run in processes of their own: a case that hangs is ended by its limit, and the next one begins anew.

A worker imports torch once and then tries one case after the other. It reads a case's name as a line of JSON
and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Mapping

from proofs.book import Outcome
from proofs.case import ROOT, Case, Skip
from weft.chaos import worker


class Worker:
    """One process for many cases."""

    def __init__(self) -> None:
        command = (sys.executable, str(ROOT / "proofs" / "prove.py"), "--worker")
        self._process = worker.Worker(command, ROOT)

    def tried(self, case: Case) -> Outcome:
        begin = time.monotonic()
        try:
            line = json.dumps([case.proof, case.name]).encode()
            answer = json.loads(self._process.run(line, case.limit_s))
        except (worker.Hung, worker.Died) as error:
            answer = {"verdict": "failed", "says": str(error)}
        seconds = round(time.monotonic() - begin, 2)
        return Outcome(
            case.proof, case.name, case.digest, answer["verdict"], seconds, answer["says"]
        )

    def close(self) -> None:
        self._process.close()


def work(cases: Iterable[Case]) -> None:
    """The worker's side: stdout carries answers only."""
    known: Mapping[tuple[str, str], Case] = {(case.proof, case.name): case for case in cases}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a case prints goes to stderr
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        proof, name = json.loads(line)
        print(json.dumps(_answer(known[proof, name])), file=answers)


def _answer(case: Case) -> dict[str, str]:
    try:
        return {"verdict": "passed", "says": case.run()}
    except Skip as why:
        return {"verdict": "skipped", "says": str(why)}
    except Exception as error:
        says = f"{type(error).__name__}: {error}"
        return {"verdict": "failed", "says": f"{says}\n{traceback.format_exc()[-3000:]}"}
