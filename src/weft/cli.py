"""The command line: `weft plan ...`. Each group of commands is one module, imported here."""

import gc
import signal

from weft.commands import (
    chaos,
    demo,
    doctor,
    keys,
    listing,
    nodes,
    planning,
    reproduce,
    running,
    watching,
)  # fmt: skip
from weft.commands.app import app, end_in_order

__all__ = [
    "app", "chaos", "demo", "doctor", "keys", "listing", "main", "nodes", "planning", "reproduce", "running",
    "watching",
]  # fmt: skip


def main() -> None:
    """The command `weft`."""
    # PyTorch's imports make many objects that stay alive: collect garbage less often.
    gc.set_threshold(20_000)
    signal.signal(signal.SIGTERM, end_in_order)
    app()
