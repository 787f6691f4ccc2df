"""What a device sent and received in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableSequence
from dataclasses import dataclass, field

from weft.program.timeline import Span


@dataclass
class Ledger:
    """Counts and transfers of one device."""

    device: str
    counts: Counter[str] = field(default_factory=Counter)  # bad, foreign, doubled, sent messages
    transfers: MutableSequence[Span] = field(default_factory=list)  # messages on channels
