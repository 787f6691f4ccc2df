"""Chaos draws the same script from the same seed, and its report says what came of the runs."""

from __future__ import annotations

import pytest

from weft.chaos.chaos import Asked, _Course
from weft.chaos.fleets import HOME, SWARM, TIERS, fleet_for
from weft.chaos.report import Outcome, Report, Row
from weft.chaos.scenes import Scene, draw
from weft.chaos.trial import Trial
from weft.chaos.worker import Died
from weft.errors import InputError
from weft.fleet.faults import COORDINATOR, Faults, Kind, check
from weft.fleet.parse import dump_fleet
from weft.plans import registry
from weft.runtime.run.injector import Injected


def test_a_seed_and_a_number_give_one_script() -> None:
    scenes = (Scene.kill, Scene.silence)
    assert draw(1, 4, scenes, 4, 200) == draw(1, 4, scenes, 4, 200)
    assert draw(1, 4, scenes, 4, 200) != draw(2, 4, scenes, 4, 200)
    assert draw(1, 4, scenes, 4, 200) != draw(1, 5, scenes, 4, 200)


@pytest.mark.parametrize("scene", list(Scene))
def test_every_scene_can_happen_before_the_run_is_over(scene: Scene) -> None:
    for number in range(20):
        script = draw(0, number, (scene,), 3, 150)
        check(script, TIERS)
        steps = [fault.step for fault in script.fault if fault.step is not None]
        assert len(steps) >= 3
        assert max(steps) < 150


def row(outcome: Outcome, *faults: Injected, **what: object) -> Row:
    return Row(0, outcome, Faults(), faults, **what)  # type: ignore[arg-type]


def test_a_report_counts_kills_hangs_and_lost_runs() -> None:
    kill = Injected(Kind.kill, "nuc", 3, 0.1, True, recovered_s=0.5)
    back = Injected(Kind.restart, "nuc", 9, 0.9)
    dead = Injected(Kind.kill, COORDINATOR, 5, 0.0, True)
    report = Report("mine", 7, [
        row(Outcome.done, kill, back, repeated=3, difference=0.0, exact=True),
        row(Outcome.hang), row(Outcome.lost, dead),
    ])  # fmt: skip
    document = report.document()
    assert (document["runs"], document["kills"], document["hangs"]) == (3, 2, 1)
    assert (document["lost_runs"], document["repeated"]) == (1, 3)
    assert document["recovery_s"] == {"median": 0.5, "p95": 0.5}
    assert document["largest_difference"] == 0.0
    assert report.faults == 2  # who comes back is no fault
    assert report.failed


def test_other_weights_than_those_of_an_undisturbed_run_are_a_failure() -> None:
    assert Report("mine", 0, [row(Outcome.done, difference=1e-3, exact=True)]).failed
    assert Report("mine", 0, [row(Outcome.done, difference=None, exact=True)]).failed
    assert not Report("mine", 0, [row(Outcome.done, difference=1e-7, exact=True)]).failed


def test_weights_may_differ_by_ten_times_the_rounding_of_two_plans() -> None:
    report = Report("mine", 0)
    assert report.limit == 1e-5
    report.rounding = 3e-6
    assert report.limit == pytest.approx(3e-5)
    assert not row(Outcome.done, difference=2e-5, exact=True, limit=report.limit).unequal
    assert row(Outcome.done, difference=4e-5, exact=True, limit=report.limit).unequal
    assert not Report("mine", 0, [row(Outcome.done, difference=1e-3)]).failed


def test_losses_are_compared_with_those_of_several_seeds() -> None:
    calm = [row(Outcome.done, final_loss=loss) for loss in (0.5, 0.7, 0.6)]
    report = Report("mine", 0, [row(Outcome.done, final_loss=loss) for loss in (0.4, 0.65, 0.8)])
    assert report.document()["above_noise"] is None  # one seed has no range
    report.undisturbed = calm
    assert report.noise == (0.5, 0.7)
    assert report.document()["above_noise"] == 1


def test_faults_before_the_coordinators_death_count_and_a_crash_is_no_kill() -> None:
    """They were lost with the process: a run of thirteen scenes counted those after its last death."""
    script = Faults().kill("nuc", step=5).kill(COORDINATOR, step=9).kill("box", step=20)
    came = [Injected(Kind.kill, "nuc", 5, 0.3, True), Injected(Kind.kill, COORDINATOR, 9, 0.6)]
    course = _Course(script)
    course.died(Died("killed"), True, came)
    assert course.outcome is None
    assert course.injected == came
    assert [fault.device for fault in course.left.fault] == ["box"]
    crash = _Course(script)  # nobody has killed it: it died by itself
    crash.died(Died("it has ended"), True, [])
    crash.died(Died("it has ended"), True, [])
    assert crash.outcome == Outcome.lost


def test_what_a_strategy_cannot_do_is_refused_in_words() -> None:
    def asked(strategy: str, *scenes: Scene) -> Asked:
        return Asked(Trial("cnn5", "digits", dump_fleet(HOME), strategy, 100, ""), scenes)

    asked("decoupled", Scene.kill, Scene.coordinator).check()
    with pytest.raises(InputError, match="answers and does not train"):
        asked("coopai", Scene.kill).check()


def test_a_fleet_fits_the_strategy_and_the_size_of_the_network() -> None:
    assert fleet_for(registry.get("stitchnet"), 1.0) == SWARM
    assert fleet_for(registry.get("fedavg"), 1.0) == HOME
    small, large = (fleet_for(registry.get("chain"), flops) for flops in (1.0, 1.5e9))
    assert small == TIERS
    ratio = (large.device("nuc").gflops or 0.0) / (small.device("nuc").gflops or 1.0)
    assert ratio == pytest.approx(1000.0)
