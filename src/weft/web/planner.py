"""A process that plans for the page, with a time limit: a search that takes too long is ended.

    answer = await Planner().ask(question)

The question and the answer are one line of JSON each. The process is started with the first question, and
again after one that took too long. It ends with the server: its input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import msgspec
from msgspec import Struct

from weft.errors import WeftError
from weft.plans.plan import Plan
from weft.web.what_if import Change, what_if

LIMIT_S = 20.0
START_S = 60.0  # more for the first question: importing takes seconds on a small machine
MOST_BYTES = 64 << 20


class Question(Struct, frozen=True):
    """What would be planned, and for which change."""

    plan: Plan
    change: Change
    strategy: str
    options: dict[str, str] = {}


def answer(line: bytes) -> dict[str, Any]:
    """The answer to a question: a document, or `error` with the reason in words."""
    try:
        question = msgspec.json.decode(line, type=Question)
        return what_if(question.plan, question.change, question.strategy, question.options)
    except (WeftError, msgspec.MsgspecError) as error:
        return {"error": str(error)}
    except Exception as error:  # a strategy's mistake is this answer's reason, not the page's end
        return {"error": f"planning failed: {error!r}"}


class Planner:
    """Asks the process, one question at a time."""

    def __init__(self, limit_s: float = LIMIT_S, start_s: float = START_S) -> None:
        self.limit_s, self.start_s = limit_s, start_s
        self._process: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()

    async def ask(self, question: Question) -> dict[str, Any]:
        """The answer, or an error in words if it took too long."""
        async with self._busy:
            new = self._process is None or self._process.returncode is not None
            limit = self.start_s if new else self.limit_s
            try:
                line = await asyncio.wait_for(self._exchange(question), limit)
            except (asyncio.TimeoutError, OSError, asyncio.LimitOverrunError, ValueError) as error:
                await self.close()
                why = str(error) or f"planning took more than {limit:g} s and was ended"
                return {"error": why}
            if not line.endswith(b"\n"):
                await self.close()
                return {"error": "the planning process ended"}
            document: dict[str, Any] = msgspec.json.decode(line)
            return document

    async def _exchange(self, question: Question) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "weft.web.planner",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=MOST_BYTES,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def main() -> None:
    """Answers questions from standard input until it is closed."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what a strategy prints is no answer
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(answer(line)) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
