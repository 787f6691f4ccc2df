"""Each peer's own network as it is shipped, and the whole network put together from what comes home.

    own = own_networks(net, sets, data, loss)                  # sub-models of a decoupled network
    peers = exact(peers, own, weights)                         # the exact sizes of what is exchanged
    whole = recompose(net, own, states)

Peers with the same number of classes have the same graph, so their loss is captured once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from weft.graph.capture.module import capture_loss, state_of
from weft.graph.network import Graph
from weft.graph.split.classes.exchange import harvest, mean
from weft.graph.split.classes.loss import Loss, loss_over
from weft.graph.split.classes.network import DecoupledNet, State, compose
from weft.plans.peers import SHARED, Held, Peer, Peers
from weft.plans.plan import Plan
from weft.runtime.node.groups import KEPT, MEAN
from weft.runtime.run.workload.networks import Own
from weft.runtime.wire import messages as msg

States = Mapping[str, Mapping[str, Tensor]]  # by device


def own_networks(
    net: DecoupledNet,
    sets: Mapping[str, Sequence[int]],
    data: Mapping[str, msg.Data],
    loss: Loss,
) -> dict[str, Own]:
    """A sub-model for each device, with copies of the weights, and the loss over its classes."""
    graphs: dict[tuple[object, ...], Graph] = {}
    found = {}
    for device, classes in sets.items():
        part = net.sub_model(classes)
        own_loss = loss_over(loss, classes)
        graph = _with_loss(part.graph, own_loss, graphs)
        state = _copies(part) | _loss_state(own_loss)
        found[device] = Own(graph, state, data[device], groups_of(part))
    return found


def whole_networks(
    net: nn.Module, graph: Graph, data: Mapping[str, msg.Data], loss: Loss
) -> dict[str, Own]:
    """The same network for everybody; all of it is shared (FedAvg)."""
    graph = _with_loss(graph, loss, {})
    groups = {
        SHARED: tuple(
            msg.Slice(name, name) for name, t in net.state_dict().items() if t.is_floating_point()
        )
    }
    state = _copies(net) | _loss_state(loss)
    return {device: Own(graph, dict(state), own, groups) for device, own in data.items()}


def _with_loss(graph: Graph, loss: Loss, known: dict[tuple[object, ...], Graph]) -> Graph:
    shapes = tuple((name, state.shape) for name, state in graph.state.items())
    if shapes not in known:
        classes = graph.values[graph.output].shape[-1]
        known[shapes] = capture_loss(graph, loss, torch.arange(8) % classes)
    return known[shapes]


def _loss_state(loss: Loss) -> dict[str, Tensor]:
    """Weights of classes, where the loss has some."""
    if not isinstance(loss, nn.Module):
        return {}
    return {n: t.detach().clone() for n, t in state_of(nn.Module(), loss).items()}


def _copies(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().contiguous() for name, tensor in state_of(net).items()}


def groups_of(net: DecoupledNet) -> dict[int, tuple[msg.Slice, ...]]:
    """Where in a sub-model's state its shared layers and each class's structure lie."""
    groups = {SHARED: tuple(msg.Slice(name, f"shared.{name}") for name in net.shared.state_dict())}
    for number, (bank, labels) in enumerate(zip(net.banks, net.bank_classes, strict=True)):
        for place, label in enumerate(labels):
            groups[label] = tuple(
                _slice(name, f"banks.{number}.{name}", len(tensor) // len(labels), place)
                for name, tensor in bank.state_dict().items()
            )
    return groups


def _slice(name: str, path: str, size: int, place: int) -> msg.Slice:
    return msg.Slice(name, path, place * size, (place + 1) * size)


def group_state(own: Own, state: Mapping[str, Tensor], group: int) -> State:
    """One group out of a device's state: views, under the names that all peers use."""
    return {
        s.label: state[s.name] if s.last < 0 else state[s.name][s.first : s.last]
        for s in own.groups[group]
    }


def exact(
    peers: Peers, own: Mapping[str, Own], weights: Mapping[str, Mapping[int, float]]
) -> Peers:
    """The same exchange with the sizes that the networks really have."""
    return msgspec.structs.replace(
        peers, peers=tuple(_exact(p, own[p.device], weights.get(p.device, {})) for p in peers.peers)
    )


def _exact(peer: Peer, own: Own, weights: Mapping[int, float]) -> Peer:
    held = tuple(
        Held(
            group,
            sum(t.numel() for t in group_state(own, own.state, group).values()),
            weights.get(group, 1.0),
        )
        for group in sorted(own.groups)
    )
    graph = own.graph
    return Peer(
        peer.device,
        peer.classes,
        held,
        weights_bytes=sum(graph.param_bytes(i) for i in range(len(graph.layers))),
        saved_bytes=sum(layer.saved_bytes for layer in graph.layers),
    )


def settled(states: States) -> States:
    """Everybody's weights as they count at the end: means over the last rounds, where reported."""
    return {
        d: {n: state.get(MEAN + n, t) for n, t in state.items() if not n.startswith(MEAN)}
        for d, state in states.items()
    }


def shared_mean(own: Mapping[str, Own], states: States) -> State:
    """The mean of what all peers share."""
    return mean([group_state(own[d], state, SHARED) for d, state in states.items()])


def structures(
    own: Mapping[str, Own], states: States, weights: Mapping[str, Mapping[int, float]] | None = None
) -> dict[int, State]:
    """Every class's structure: the mean over its owners; where there is none, what others kept."""
    held = {
        d: {g: group_state(own[d], state, g) for g in own[d].groups if g != SHARED}
        for d, state in states.items()
    }
    found = harvest(held, weights)
    for label, state in kept_structures(states).items():
        found.setdefault(label, state)
    return dict(sorted(found.items()))


def kept_structures(states: States) -> dict[int, State]:
    """Structures that somebody keeps for others, by class."""
    found: dict[int, State] = {}
    for state in states.values():
        for name, tensor in state.items():
            if name.startswith(KEPT):
                label, _, key = name.removeprefix(KEPT).partition("/")
                found.setdefault(int(label), {})[key] = tensor
    return found


def keepers(states: States, label: int) -> list[str]:
    """Who keeps the structure of a class for another."""
    prefix = f"{KEPT}{label}/"
    return [d for d, state in states.items() if any(n.startswith(prefix) for n in state)]


def newcomer_state(device: str, own: Mapping[str, Own], states: States) -> dict[str, Tensor]:
    """Weights for a device that comes back: means of what the others have now.

    What nobody has any more stays as it was at the beginning.
    """
    mine = own[device]
    state = {name: tensor.clone() for name, tensor in mine.state.items()}
    now: dict[int, State] = {SHARED: shared_mean(own, states), **structures(own, states)}
    for group in mine.groups:
        for label, tensor in group_state(mine, state, group).items():
            if group in now:
                tensor.copy_(now[group][label])
    return state


def recompose(
    net: DecoupledNet,
    own: Mapping[str, Own],
    states: States,
    weights: Mapping[str, Mapping[int, float]] | None = None,
) -> DecoupledNet:
    """The whole network, of all peers that are there; a class without any as it was at the beginning."""
    found = {**net.structures(), **structures(own, states, weights)}
    return compose(net.blueprint, shared_mean(own, states), dict(sorted(found.items())))


def recompose_whole(net: nn.Module, own: Mapping[str, Own], states: States,
                    weights: Mapping[str, float]) -> nn.Module:  # fmt: skip
    """FedAvg's network: the mean over all, by their samples."""
    parts = [group_state(own[d], state, SHARED) for d, state in states.items()]
    net.load_state_dict(mean(parts, [weights.get(d, 1.0) for d in states]), strict=False)
    return net


def with_peers(plan: Plan, peers: Peers) -> Plan:
    """The plan for these peers: those that are there now."""
    devices = set(peers.devices)
    source = plan.source if plan.source in devices else peers.devices[0]
    shards = tuple(s for s in plan.shards if s.device in devices)
    return msgspec.structs.replace(plan, peers=peers, shards=shards, source=source)
