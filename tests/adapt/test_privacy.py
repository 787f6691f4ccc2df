"""What leaves the client, seen on the wire: never samples, and labels only where the user lets them go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from weft.plans.online import Setting
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.wire import crew as crew_module
from weft.runtime.wire import messages as msg
from weft.runtime.wire.frames import Header, unpack_header
from weft.runtime.wire.seal import split_header

Subject = Any
STEPS = 40


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalFleet]:
    """Nodes whose tensors go through Zenoh, where a subscriber sees them. Lines carry the same messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_LINES", "off")
        with LocalFleet(("phone", "e1", "e2", "e3")) as local:
            local.crew.wait_for(local.names, 60.0)
            yield local


class Wire:
    """Everything that any process of the fleet publishes or answers."""

    def __init__(self, local: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[Header | None, bytes]] = []
        self.answers: list[bytes] = []
        self._subscriber = local.crew.session.declare_subscriber(f"{local.group}/**", self._take)
        unpack = msg.unpack_reply

        def spy(data: bytes) -> msg.Reply:
            self.answers.append(data)
            return unpack(data)

        monkeypatch.setattr(crew_module.msg, "unpack_reply", spy)

    def _take(self, sample: Any) -> None:
        header = None
        if "/data/" in str(sample.key_expr):
            sealed, _ = split_header(sample.attachment.to_bytes())
            header = unpack_header(sealed)
        self.messages.append((header, sample.payload.to_bytes()))

    def leaves(self, device: str) -> list[bytes]:
        """What a device sent to others, and all answers to the coordinator."""
        sent = [p for h, p in self.messages if h is None or h.source == device]
        return sent + self.answers

    def kinds(self, device: str) -> set[tuple[str, int]]:
        return {(h.kind, h.at) for h, _ in self.messages if h is not None and h.source == device}


@pytest.fixture
def wire(shared: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    found = Wire(shared, monkeypatch)
    yield found
    found._subscriber.undeclare()


def samples_of(subject: Subject) -> tuple[list[bytes], list[bytes]]:
    """Every sample's bytes, and every minibatch's labels."""
    xs, ys = zip(*(subject.data(n) for n in range(STEPS)), strict=True)
    samples = [row.numpy().tobytes() for x in xs for row in x]
    return samples, [y.numpy().tobytes() for y in ys]


def seen(needles: list[bytes], hay: list[bytes]) -> int:
    return sum(any(needle in payload for payload in hay) for needle in needles)


@pytest.mark.parametrize("labels", ["worker", "home"])
def test_samples_never_leave_the_client(
    labels: str,
    wire: Wire,
    go: Callable[..., Any],
    shared: LocalFleet,
    script: Any,
    subject: Subject,
) -> None:
    """Cuts move, the worker changes, servers are probed, one stands by."""
    policy = script(
        start=Setting("e1", 1, 2),
        settings=[Setting("e1", 2, 2), Setting("e2", 1, 2), Setting(None, 4)],
    )  # fmt: skip
    ran = go(shared, policy, STEPS, labels=labels, standby="auto", start=("e1", 1))
    assert "worker_changed" in ran.kinds
    samples, targets = samples_of(subject)
    left = wire.leaves("phone")
    assert seen(samples, left) == 0
    kinds = wire.kinds("phone")
    assert ("act", 1) in kinds  # the wire was really listened to
    assert ("probe", 1) in kinds
    assert ("act", 0) not in kinds
    if labels == "home":
        assert seen(targets, left) == 0
    else:
        assert seen(targets, left) > STEPS // 2  # the worker computes the loss, so it needs them
    # The coordinator's feed, which goes to the client, has them: the needles are the right ones.
    fed = [p for h, p in wire.messages if h is not None and h.kind == "feed"]
    assert seen(samples[:20], fed) == 20


def test_weights_of_the_real_network_are_in_no_probe(
    wire: Wire, go: Callable[..., Any], shared: LocalFleet, script: Any, subject: Subject
) -> None:
    go(shared, script(start=Setting("e1", 2, 2), settings=[None] * 3), STEPS, standby="none")
    probes = [p for h, p in wire.messages if h is not None and h.kind in ("probe", "probed")]
    assert len(probes) > 6
    weights = [w.numpy().tobytes()[:64] for w in subject.state().values() if w.numel() >= 16]
    assert seen(weights, probes) == 0


def test_the_needles_would_be_found() -> None:
    """A search that finds nothing must be able to find something."""
    x = torch.randn(4, 20)
    assert seen([x[2].numpy().tobytes()], [b"abc" + x.numpy().tobytes()]) == 1
