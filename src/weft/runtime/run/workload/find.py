"""The workload of what was asked for, and the recovery of a plan: by the words of its strategy's record."""

from __future__ import annotations

from collections.abc import Callable

from weft.plans import registry
from weft.plans.plan import Plan
from weft.plans.protocols import CLONE, GO_BACK, LEAVE_OUT, ONE_NETWORK, PEERS
from weft.plans.strategy import Strategy, resolve
from weft.runtime.run.recovery.clone import Clone
from weft.runtime.run.recovery.go_back import GoBack
from weft.runtime.run.recovery.leave_out import LeaveOut
from weft.runtime.run.recovery.protocol import Recovery
from weft.runtime.run.workload.asked import Asked
from weft.runtime.run.workload.one_network import OneNetwork
from weft.runtime.run.workload.peers import PeerNetworks

AnyWorkload = OneNetwork | PeerNetworks
WORKLOADS: dict[str, Callable[[Asked], AnyWorkload]] = {
    ONE_NETWORK: OneNetwork,
    PEERS: PeerNetworks,
}
RECOVERIES: dict[str, Callable[[Plan], Recovery]] = {
    GO_BACK: lambda plan: GoBack(),
    CLONE: lambda plan: Clone(),
    LEAVE_OUT: LeaveOut,
}


def strategy_of(asked: Asked) -> Strategy:
    return registry.get(asked.strategy) if asked.plan is None else registry.behind(asked.plan)


def workload_of(asked: Asked) -> AnyWorkload:
    """What is trained: captured, measured where it is emulated, and planned."""
    word = strategy_of(asked).workload
    make: Callable[[Asked], AnyWorkload] = WORKLOADS.get(word) or resolve(word)
    return make(asked)


def recovery_of(plan: Plan) -> Recovery:
    """What is done about a lost device under this plan."""
    word = registry.behind(plan).recovery
    make: Callable[[Plan], Recovery] = RECOVERIES.get(word) or resolve(word)
    return make(plan)
