"""A process with open sessions ends, however it is ended. It hung for minutes once: Zenoh's callbacks ran in
Python threads, for which the interpreter waits at its end.

This file is also the program that is ended: python test_ending.py HOW
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PATIENCE_S = 120.0  # a busy machine may take long to import PyTorch
pytestmark = pytest.mark.proof


@pytest.mark.parametrize(
    ("how", "code"), [("exception", 1), ("exit", 3), ("signal", 143), ("end", 0)]
)
def test_a_process_ends_though_its_sessions_are_open(how: str, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, __file__, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        if how == "signal":
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, errors
    finally:
        process.kill()
        process.communicate()


def leave(how: str) -> None:
    """Opens a node and a crew that has asked and listens, and ends without closing them."""
    from weft.commands.app import TERMINATED, Terminated, end_in_order
    from weft.runtime.node.node import Node
    from weft.runtime.wire import messages as msg
    from weft.runtime.wire.crew import Crew
    from weft.runtime.wire.session import Endpoints, free_endpoint

    endpoint = free_endpoint()
    node = Node("pi", Endpoints(listen=(endpoint,)))
    crew = Crew(Endpoints(join=(endpoint,), asks_only=True))
    crew.wait_for(["pi"], 60.0)
    crew.watch({"pi"}, 1.0)
    crew.claim("a1")
    crew.listen("a1")
    crew.leave_word("pi", msg.Hello())  # nobody serves the node: no answer comes
    signal.signal(signal.SIGTERM, end_in_order)
    if how == "signal":
        try:
            print("open", flush=True)
            time.sleep(PATIENCE_S)
        except Terminated:
            sys.exit(TERMINATED)
    print("open", flush=True)
    if how == "exception":
        raise RuntimeError("the work failed")
    if how == "exit":
        sys.exit(3)
    assert node.session is not crew.session


if __name__ == "__main__":
    leave(sys.argv[1])
