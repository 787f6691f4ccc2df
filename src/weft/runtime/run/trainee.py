"""A network made ready for a run: captured, and measured where its fleet is emulated here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from weft.fleet.fleet import Fleet
from weft.graph.capture import capture, capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.optimizer import Optimizer
from weft.plans.derive import derive_profile
from weft.plans.profile import Profile
from weft.runtime.emulate.pace import Emulation, emulation
from weft.runtime.run.feeds import Source

Loss = nn.Module | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Trainee:
    """A network ready to be planned: captured with its loss, and measured where it is emulated."""

    graph: Graph
    state: dict[str, Tensor]
    emulation: Emulation | None

    @property
    def paced(self) -> frozenset[str]:
        return self.emulation.paced if self.emulation else frozenset()


def prepare(
    model: nn.Module,
    source: Source,
    loss: Loss,
    fleet: Fleet,
    *,
    batch: int,
    rule: Optimizer,
    emulated: bool,
    profile: Profile | None = None,
    name: str = "",
) -> Trainee:
    """Captures the network and its loss; measures it where the fleet is emulated here."""
    graph = capture(model, source.example, name=name)
    graph = capture_loss(graph, loss, source.target)
    state = state_of(model, loss if isinstance(loss, nn.Module) else None)
    measured = None
    if emulated:
        measured = emulation(
            graph, state, fleet, batch=batch, training=True, optimizer=rule, given=profile
        )
    return Trainee(graph, state, measured)


def profile_for(trainee: Trainee, fleet: Fleet, given: Profile | None) -> Profile:
    """What a plan of this run is made for: the emulated times, else the given or derived ones."""
    if trainee.emulation is not None:
        return trainee.emulation.profile
    return given if given is not None else derive_profile(trainee.graph, fleet)
