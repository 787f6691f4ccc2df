"""Cases run in processes of their own: a case that hangs is ended by its limit, and the next one begins anew.

A worker imports torch once and then tries one case after the other. It reads a case's name as a line of JSON
and answers with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from typing import IO, Any

from proofs.book import Outcome
from proofs.case import ROOT, Case, Skip

START_S = 120.0  # to import torch on a busy machine


class Worker:
    """One process for many cases."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def tried(self, case: Case) -> Outcome:
        begin = time.monotonic()
        answer = self._ask(case)
        seconds = round(time.monotonic() - begin, 2)
        if answer is None:
            says = f"no end after {seconds:.0f} s, or the process died"
            answer = {"verdict": "failed", "says": says}
            self.close()
        return Outcome(
            case.proof, case.name, case.digest, answer["verdict"], seconds, answer["says"]
        )

    def _ask(self, case: Case) -> dict[str, Any] | None:
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([case.proof, case.name]).encode() + b"\n")
            process.stdin.flush()
            return self._answers.get(timeout=case.limit_s)
        except (OSError, queue.Empty):
            return None

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ROOT / "proofs" / "prove.py"), "--worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        self._answers = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(
            target=_listen, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        with contextlib.suppress(queue.Empty):
            self._answers.get(timeout=START_S)  # it is ready

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def _listen(stream: IO[bytes], answers: queue.Queue[dict[str, Any] | None]) -> None:
    for line in stream:
        answers.put(json.loads(line))
    answers.put(None)


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
