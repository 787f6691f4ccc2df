"""What a run learns from its devices' reports, and who is told of it how often."""

from __future__ import annotations

from weft.runtime.run.outcome import Outcome, Settling
from weft.runtime.wire import messages as msg


def report(outcome: Outcome, device: str, first: int, last: int) -> None:
    losses = tuple((step, float(step)) for step in range(first, last))
    outcome.add(msg.Progress(device, last - 1, losses))


def test_a_loss_is_given_once_and_only_when_all_devices_have_done_its_minibatch() -> None:
    outcome, settling = Outcome(), Settling()
    report(outcome, "pi", 0, 4)
    assert settling.take(outcome, end=2) == {0: 0.0, 1: 1.0}
    assert settling.take(outcome, end=2) == {}
    assert settling.take(outcome, end=4) == {2: 2.0, 3: 3.0}


def test_a_minibatch_that_is_repeated_is_not_given_again() -> None:
    outcome, settling = Outcome(), Settling()
    report(outcome, "pi", 0, 4)
    settling.take(outcome, end=3)
    outcome.repeat_from(2)
    assert outcome.newest == 1
    assert settling.take(outcome, end=4) == {}  # the loss of minibatch 3 does not count any more
    report(outcome, "pi", 2, 5)
    assert settling.take(outcome, end=5) == {3: 3.0, 4: 4.0}
    assert outcome.newest == 4


def test_a_loss_that_comes_late_is_not_missing() -> None:
    outcome, settling = Outcome(), Settling()
    report(outcome, "pi", 0, 2)
    report(outcome, "pi", 3, 5)
    assert list(settling.take(outcome, end=5)) == [0, 1, 3, 4]
    report(outcome, "pi", 2, 3)
    assert list(settling.take(outcome, end=5)) == [2]


def test_a_report_costs_as_much_late_in_a_run_as_at_its_beginning() -> None:
    """Every report went through the losses of all minibatches before it: quadratic in their number."""

    class Counted(dict[int, float]):
        read = 0

        def __getitem__(self, step: int) -> float:
            self.read += 1
            return super().__getitem__(step)

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("somebody goes through all losses")

    outcome, settling = Outcome(losses=Counted()), Settling()
    for step in range(2000):
        report(outcome, "pi", step, step + 1)
        settling.take(outcome, end=step + 1)
    assert outcome.losses.read == 2000  # type: ignore[attr-defined]
