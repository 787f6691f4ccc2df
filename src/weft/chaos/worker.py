"""The process that trials run in. One process runs many; a trial that hangs or is killed costs a new one.

    worker = Worker()
    worker.run(trial, limit_s=90.0)      # Ran; Hung where it has not ended; Died where the process was killed
    worker.close()

A worker is any command that writes one line when it is ready, then reads a line of JSON and answers with one.
The default is `python -m weft.chaos.worker`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from weft.errors import WeftError

START_S = 120.0  # to import torch on a busy machine
END_S = 10.0  # from SIGKILL to the end of the process
TRIALS = (sys.executable, "-m", "weft.chaos.worker")


class Hung(WeftError):
    """A trial has not ended in its time."""


class Died(WeftError):
    """The process of a trial has ended."""


class Worker:
    """The parent's side. The command is started in `folder` when the first trial comes."""

    def __init__(self, command: Sequence[str] = TRIALS, folder: Path | None = None) -> None:
        self._command, self._folder = command, folder
        self._process: _Process | None = None
        self._next: _Process | None = None  # in case the first one is killed

    def run(self, trial: bytes, limit_s: float) -> bytes:
        """The outcome of a trial, both as JSON."""
        process = self._process or self._ready_one()
        try:
            process.say(trial)
            answer = process.answers.get(timeout=limit_s)
        except OSError:
            answer = None
        except queue.Empty:
            self._end()
            raise Hung(f"no end after {limit_s:g} s") from None
        if answer is None:
            self._end()
            raise Died("the process of the run has ended")
        return answer

    def prepare_another(self) -> None:
        """Starts a process for the time after a kill; it imports PyTorch while the first one runs. Returns at
        once."""
        if self._process is not None and self._next is None:
            self._next = _Process(self._command, self._folder)

    def _ready_one(self) -> _Process:
        self._process, self._next = self._next or _Process(self._command, self._folder), None
        with contextlib.suppress(queue.Empty):
            self._process.answers.get(timeout=START_S)  # it is ready
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None

    def close(self) -> None:
        """Ends all that was started: the nodes end with the process they belong to."""
        self._end()
        if self._next is not None:
            self._next.end()
        self._next = None


class _Process:
    """A started command, and the lines that it writes; None where it has ended."""

    def __init__(self, command: Sequence[str], folder: Path | None) -> None:
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
        self.answers: queue.Queue[bytes | None] = queue.Queue()
        assert self._popen.stdout is not None
        threading.Thread(
            target=_listen, args=(self._popen.stdout, self.answers), daemon=True
        ).start()

    def say(self, line: bytes) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + b"\n")
        self._popen.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(END_S)


def _listen(stream: IO[bytes], answers: queue.Queue[bytes | None]) -> None:
    for line in stream:
        answers.put(line)
    answers.put(None)


def main() -> None:
    """The worker's side: stdout carries answers only."""
    from weft.runtime.emulate.forked import warm

    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a run prints goes to stderr
    warm()
    import torch

    from weft.chaos.trial import Ran, Trial, try_it

    torch.set_num_threads(1)
    answers.write(b"{}\n")
    for line in sys.stdin.buffer:
        try:
            ran = try_it(msgspec.json.decode(line, type=Trial))
        except Exception as error:
            ran = Ran(error=f"{type(error).__name__}: {error}")
        answers.write(msgspec.json.encode(ran) + b"\n")


if __name__ == "__main__":
    main()
