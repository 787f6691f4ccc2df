"""Serving from a fleet: the call behind `weft.serve`.

with weft.serve(model, example_input, fleet, strategy="chain", local=True) as net:
    y = net(x)
net.events         # what happened on the way
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from weft.adapt.balance import Balance
from weft.fleet.fleet import Fleet
from weft.fleet.trace import Trace
from weft.graph.capture.signature import Sample
from weft.plans.plan import Objective, Plan
from weft.plans.profile import Profile
from weft.runtime.run.launch import Place
from weft.runtime.run.serve import Served, Service, open_service
from weft.runtime.run.serving.attendants import Attendants
from weft.runtime.run.train import OnLoss


def serve(
    model: nn.Module,
    example_input: Sample,
    fleet: Fleet,
    *,
    strategy: str | None = None,
    plan: Plan | None = None,
    batch: int | None = None,
    local: bool = False,
    netns: bool = False,
    join: str | Sequence[str] | None = None,
    profile: Profile | None = None,
    options: Mapping[str, object] | None = None,
    deadline: float = 30.0,
    patience: float = 1.0,
    on_loss: OnLoss = "recover",
    adapt: bool = True,
    queue: int = 64,
    trace: Trace | None = None,
    name: str = "",
    group: str = "weft",
    config: str | None = None,
    objective: Objective = "time",
    measure: bool = True,
) -> Served:
    """Plans, opens the fleet and loads the weights; the result answers calls. Close it after use.

    `example_input` is a tensor, a tuple of tensors (positional inputs) or a dict (inputs by keyword). The
    result is called as the network is, and returns what the network returns. Any thread may call it. A
    wrong input is refused before anything is sent, and does not disturb other calls.

    At most `queue` requests wait. A further call waits until there is room, at most `deadline` seconds, and
    then raises `Busy`. `net.submit(x)` does not wait for the answer: it returns a
    `concurrent.futures.Future`.

    `on_loss` says what happens when a device is gone. With "recover" the others get a plan without it, and
    requests without an answer are asked again; the caller only sees that the answer comes later. A device
    that comes back gets a part again. With "stop" all calls raise the error that names the device. A device
    that sends no heartbeat for `patience` seconds counts as gone until it is heard again. With `adapt` the
    plan also changes when a device becomes slower or faster. `net.events` says what happened, and `net.plan`
    is the plan that runs now. `trace` makes an emulated fleet change in time. On real nodes the network is
    measured where its times are not known yet, unless `measure` is False.
    """
    ends = (join,) if isinstance(join, str) else tuple(join or ())
    service = Service(
        place=Place(local, netns, ends, group=group, config=config), strategy=strategy, plan=plan,
        batch=batch, profile=profile, options=options or {}, deadline=deadline, patience=patience,
        on_loss=on_loss, queue=queue, trace=trace, name=name, objective=objective, measure=measure,
        attendants=Balance if adapt else Attendants,
    )  # fmt: skip
    return open_service(model, example_input, fleet, service)
