"""How StitchNet's claims about accuracies are judged: by topology, with the standard error.

    above("fig9-better", "Mix-Mapped works better than Random", study, "mix", "random")

Two variants are compared on the topologies that both were trained on. With fewer than three topologies
nothing is known of chance, and no accuracy counts as reproduced: `--quick` has one or two.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.papers.claims import Claim
from weft.papers.noise import Measured, measured
from weft.papers.stitchnet.study import Study

ENOUGH = 3  # topologies; with fewer, no accuracy is judged
POINTS = 2.0  # an accuracy may differ by so much from the printed one
TOO_FEW = (
    f"Not decided: {{count}} of the at least {ENOUGH} topologies that tell a difference from chance. The "
    "full run (without --quick) decides."
)


def judged(gains: Sequence[float]) -> bool:
    """Whether there are enough topologies to tell a difference from chance."""
    return len(gains) >= ENOUGH


def beyond_noise(gains: Sequence[float], least: float = 0.0) -> bool:
    """Whether a mean difference is more than `least`, and more than twice its standard error."""
    return judged(gains) and measured(gains).above(0.0) and measured(gains).mean > least


def at_least(gains: Sequence[float], least: float) -> bool:
    """Whether a mean difference is `least` or more, its standard error counted against it."""
    return judged(gains) and _lowest(measured(gains)) >= least


def close(gaps: Sequence[float], most: float) -> bool:
    """Whether a mean difference is at most so far from 0, its standard error added."""
    return judged(gaps) and measured(gaps).within(most)


def chance(gains: Sequence[float], rule: str) -> str:
    """The mean difference with its standard error, and what counts; or that there are too few."""
    if not judged(gains):
        return TOO_FEW.format(count=len(gains))
    one = measured(gains)
    return f"{one.mean:+.2f} points over {len(gains)} topologies, standard error {one.error:.2f}; {rule}."


def above(
    id: str, what: str, study: Study, name: str, rival: str, note: str = "", *, least: float = 0.0,
    epoch: int = -1,
) -> Claim:  # fmt: skip
    """The claim that one variant is more accurate than another, beyond noise, on their common topologies."""
    gains = study.gains(name, rival, epoch)
    rule = "more than twice the error counts" + (f", and more than {least:g}" if least else "")
    return _against(id, what, study, (name, rival), epoch, beyond_noise(gains, least),
                    f"{note} {chance(gains, rule)}")  # fmt: skip


def far_above(
    id: str, what: str, study: Study, name: str, rival: str, least: float, note: str = ""
) -> Claim:
    """The claim that one variant is so many points more accurate than another, the error counted against."""
    gains = study.gains(name, rival)
    rule = f"{least:g} or more with the error taken off counts"
    return _against(id, what, study, (name, rival), -1, at_least(gains, least),
                    f"{note} {chance(gains, rule)}")  # fmt: skip


def similar(
    id: str, what: str, study: Study, name: str, rival: str, most: float, note: str = ""
) -> Claim:
    """The claim that two variants are equally accurate: at most so far apart, the error added."""
    gains = study.gains(name, rival)
    rule = f"at most {most:g} with the error added counts"
    return _against(id, what, study, (name, rival), -1, close(gains, most),
                    f"{note} {chance(gains, rule)}")  # fmt: skip


def accuracy(
    id: str, what: str, paper: float, study: Study, name: str, within: float = POINTS,
    note: str = "",
) -> Claim | None:  # fmt: skip
    """A claim with a printed accuracy; None if the data set is not the paper's."""
    if not study.setting.like_paper:
        return None
    gaps = [value - paper for value in study.finals(name)]
    rule = f"at most {within:g} with the error added counts"
    words = f"{note} From the paper: {chance(gaps, rule)}"
    return Claim(id, what, paper, study.mean(name), "%", close(gaps, within), words.strip())


def _lowest(one: Measured) -> float:
    return one.mean - one.error


def _against(
    id: str, what: str, study: Study, names: tuple[str, str], epoch: int, holds: bool, note: str
) -> Claim:
    """A claim about the accuracies of two variants, which it prints."""
    name, rival = names
    ours = f"{study.mean(name, rival, epoch):.1f} and {study.mean(rival, name, epoch):.1f}%"
    return Claim(id, what, "yes", ours, "", holds, note.strip())
