"""What a device sent and received in a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from weft.runtime.wire.span_ring import SpanRing

# A device keeps its newest spans. One that only answers may do so for months.
SPANS = {"train": 50_000, "infer": 4000}


@dataclass
class Ledger:
    """Counts and transfers of one device."""

    device: str
    counts: Counter[str] = field(default_factory=Counter)  # bad, foreign, doubled, sent messages
    transfers: SpanRing = field(
        default_factory=lambda: SpanRing(SPANS["train"])
    )  # messages on channels
