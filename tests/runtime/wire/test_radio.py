"""Best-effort messages: lost exactly as the simulation draws them, late ones dropped, stand-ins taken."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import torch

from weft.draws import TRAINING
from weft.fleet.radio import Radio as RadioModel
from weft.fleet.radio import topology
from weft.graph.network import Blank
from weft.plans.delivery import Routes
from weft.program.instructions import Radio, Recv, Tensor
from weft.reference.lossy import LossyRadio
from weft.runtime.node.slots import Slots
from weft.runtime.wire.frames import Header, pack_tensors
from weft.runtime.wire.mailbox import Letter, Mailbox
from weft.runtime.wire.radio import RadioRules, Transmitter
from weft.strategies.stitchnet.mapping import mix_mapped
from weft.strategies.stitchnet.paths import wanted

NAMES = tuple("abcde")
PLACE = topology(7, RadioModel(devices=5))
DELIVERY = PLACE.delivery(4.1)


class Air:
    """Five devices' transmitters in one process: what one posts reaches the other, or its relay."""

    def __init__(self, rules: RadioRules) -> None:
        self.arrived: dict[tuple[int, int, str, str], bool] = {}
        self.ends = {name: End(self, name) for name in rules.devices}
        self.radios = {name: Transmitter(rules, end) for name, end in self.ends.items()}  # type: ignore[arg-type]

    def post(self, header: Header, payload: bytes, to: str) -> None:
        if to != header.dest:
            self.radios[to].relay(header, payload)
            return
        key = header.step, header.at, header.source, header.dest
        self.arrived[key] = self.arrived.get(key, False) or not header.lost


class End:
    def __init__(self, air: Air, name: str) -> None:
        self.air, self.name = air, name
        self.counts: Counter[str] = Counter()

    def post(self, header: Header, payload: bytes, to: str) -> None:
        self.air.post(header, payload, to)


@pytest.mark.parametrize("slot_s", [0.0, 0.1], ids=["told", "clocked"])
def test_what_arrives_is_what_the_simulation_says(slot_s: float) -> None:
    spread = mix_mapped(PLACE.measured(4.1), (12, 8, 10))
    random = np.random.RandomState(0)
    asked = wanted(spread)
    direct, relayed = (random.randint(0, 3, asked.shape) * asked for _ in range(2))
    via = np.array([[next(k for k in range(5) if k not in (i, j)) for j in range(5)]
                    for i in range(5)])  # fmt: skip
    routes = Routes(direct, relayed, via)
    heard = LossyRadio(spread, routes, DELIVERY, seed=9).heard(TRAINING, 0, 20)
    rules = RadioRules(
        NAMES, 7, routes.attempts, seed=9, delivery=tuple(map(tuple, DELIVERY.tolist())),
        slot_s=slot_s,
    )  # fmt: skip
    air = Air(rules)
    sent = 0
    for step in range(20):
        for slot, i, j in np.argwhere(direct + relayed > 0).tolist():
            header = Header("r", 0, step, "act", slot, 0, NAMES[i], NAMES[j], 1)
            ways = int(direct[slot, i, j]), int(relayed[slot, i, j])
            air.radios[NAMES[i]].send(header, b"x", Radio(slot, *ways, NAMES[via[i, j]]))
            found = air.arrived.get((step, slot, NAMES[i], NAMES[j]), False)
            assert found == heard[step, slot, i, j]
            sent += 1
    counts: Counter[str] = sum((end.counts for end in air.ends.values()), Counter())
    assert counts["messages"] == sent
    # every packet of the plan leaves; a relay sends on only what has reached it
    assert direct.sum() * 20 < counts["packets"] <= (direct.sum() + 2 * relayed.sum()) * 20


def test_a_relay_counts_and_drops_what_cannot_be_of_this_run() -> None:
    air = Air(RadioRules(NAMES, 7, 1, slot_s=0.1))
    good = Header("r", 0, 3, "act", 2, 0, "a", "b", 1, slot=2)
    for field in ({"slot": 7}, {"attempt": 1}, {"attempt": -1}, {"step": -1}, {"step": 1 << 60}):
        bad = {**{f: getattr(good, f) for f in good.__struct_fields__}, **field}
        air.radios["c"].relay(Header(**bad), b"x")
    assert air.ends["c"].counts["bad"] == 5
    assert not air.arrived
    air.radios["c"].relay(good, b"x")
    assert len(air.arrived) == 1


# --- slots ------------------------------------------------------------------------------------------

BLANK = Blank("h", (1, 5))
RULES = RadioRules(NAMES, slots=3, slot_s=0.01)


def recv(**more: object) -> Recv:
    given = {"late": "zero", "slot": 1, "blanks": (BLANK,), "samples": 2, **more}
    return Recv(Tensor("act", 1, part=2), "a", **given)  # type: ignore[arg-type]


def letter(step: int, width: int = 5, **more: object) -> Letter:
    specs, payload = pack_tensors({"h": torch.ones(2, width)})
    header = Header("r", 0, step, "act", 1, 0, "a", "b", len(payload), specs, part=2, **more)  # type: ignore[arg-type]
    return Letter(header, payload)


def slots(rules: RadioRules = RULES) -> tuple[Slots, Mailbox, Counter[str]]:
    box, counts = Mailbox(), Counter[str]()
    return Slots(rules, box, counts, 5.0), box, counts


def key(step: int) -> tuple[int, int, str, int, int, int]:
    return (0, step, "act", 1, 0, 2)


def test_a_receiver_goes_on_at_the_end_of_the_slot_with_what_it_has() -> None:
    clock, box, counts = slots()
    begin = time.monotonic()
    clock.begin(begin, first=4)
    assert clock.end(5, 1) == pytest.approx(begin + 0.05)
    box.put(letter(5))
    assert clock.take(key(5), recv(), 5) is not None
    assert clock.take(key(6), recv(), 6) is None
    assert time.monotonic() >= clock.end(6, 1)
    assert (counts["heard"], counts["unheard"]) == (1, 1)
    box.put(letter(6))  # too late
    box.put(letter(7))
    clock.forget(6)
    assert counts["late"] == 1
    assert clock.take(key(7), recv(), 7) is not None


def test_a_letter_that_is_due_after_the_slot_is_late() -> None:
    clock, box, _ = slots()
    clock.begin(time.monotonic(), first=0)
    box.put(letter(0, due=time.monotonic() + 60))
    assert clock.take(key(0), recv(), 0) is None


def test_the_word_of_a_loss_ends_the_wait_at_once() -> None:
    clock, box, counts = slots(RadioRules(NAMES, slots=3))
    header = letter(0).header
    lost = Header(header.run, 0, 0, "act", 1, 0, "a", "b", 0, part=2, lost=True)
    box.put(Letter(lost, b""))
    assert clock.take(key(0), recv(), 0) is None
    assert counts["unheard"] == 1


def test_who_was_away_leaves_out_what_is_over() -> None:
    clock, _, _ = slots()
    clock.begin(time.monotonic() - 0.1, first=0)  # three minibatches of 30 ms are over
    assert [clock.missed(step, beginning=True) for step in (0, 1, 2)] == [True] * 3
    assert not clock.missed(2000, beginning=True)
    assert clock.missed(0, beginning=False)
    assert not clock.missed(1999, beginning=False)
    clock.take(key(3), recv(), 3)
    assert not clock.missed(3, beginning=False), "a little late is not away"
    clock.begin(time.monotonic() - 0.2, first=0)
    clock.take(key(1), recv(), 1)
    assert clock.missed(1, beginning=False)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_zeros_or_ones_own_units_over_and_over_stand_in() -> None:
    clock, _, counts = slots()
    assert clock.values(None, recv(), None, 0)["h"].tolist() == [[0.0] * 5] * 2
    own = {"h": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    found = clock.values(None, recv(late="own"), own, 0)["h"]
    assert found.tolist() == [[1, 2, 1, 2, 1], [3, 4, 3, 4, 3]]
    assert clock.values(letter(0), recv(), None, 0)["h"].tolist() == [[1.0] * 5] * 2
    assert clock.values(letter(0, width=4), recv(), None, 0)["h"].tolist() == [[0.0] * 5] * 2
    assert counts["bad"] == 1
