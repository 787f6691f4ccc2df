"""The masked form equals what devices compute one by one with the messages that reach them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weft.data.dataset import Dataset
from weft.draws import TESTING, TRAINING, Draws, uniform, uniforms
from weft.errors import InputError
from weft.fleet.radio import topology
from weft.graph.split.lost_values import LostValues
from weft.graph.split.masked import Perceptron
from weft.plans.delivery import Routes, chance
from weft.reference.lossy import LossyRadio, evaluate, train
from weft.strategies.stitchnet.mapping import MAPPERS, Spread, mix_mapped
from weft.strategies.stitchnet.paths import Path, plan_routes, slots, wanted

Array = NDArray[np.float64]
WIDTHS, INPUTS, CLASSES, BATCH = (12, 8, 10, 8), 7, 3, 5
PLACE = topology(53)

pytestmark = pytest.mark.usefixtures("one_thread")


class Device:
    """Owns some neurons of each layer, with their weights and their own Adam; hears messages."""

    def __init__(self, name: int, units: list[list[int]], net: Perceptron) -> None:
        self.name = name
        self.units = units  # by layer, hidden ones first, the output last
        self.w = [net.weights[k].numpy()[u].copy() for k, u in enumerate(units)]
        self.b = [net.biases[k].numpy()[u].copy() for k, u in enumerate(units)]
        self.moments = [[np.zeros_like(p) for p in (w, b, w, b)] for w, b in self.both()]
        self.grads: list[tuple[Array, Array]] = []

    def both(self) -> list[tuple[Array, Array]]:
        return list(zip(self.w, self.b, strict=True))

    def forward(self, layer: int, heard: dict[int, Array], senders: dict[int, list[int]],
                width: int, update: LostValues, own: Array | None) -> Array:  # fmt: skip
        """The values of its neurons, from what it heard; what it used is kept for the gradient."""
        x = np.zeros((BATCH, width))
        for sender, units in senders.items():
            for place, unit in enumerate(units):
                if sender in heard:
                    x[:, unit] = heard[sender][:, place]
                elif update == "own" and own is not None and own.shape[1]:
                    x[:, unit] = own[:, place % own.shape[1]]
        z = x @ self.w[layer].T + self.b[layer]
        self.used = {**getattr(self, "used", {}), layer: x}
        return z

    def backward(self, layer: int, g: Array, senders: dict[int, list[int]]) -> dict[int, Array]:
        """Keeps its weights' gradients; what each sender of the layer before should hear."""
        self.grads[layer] = (g.T @ self.used[layer], g.sum(axis=0))
        return {sender: g @ self.w[layer][:, units] for sender, units in senders.items()}

    def adam(self, step: int) -> None:
        for layer, (grads, moments) in enumerate(zip(self.grads, self.moments, strict=True)):
            for p, g, k in ((self.w[layer], grads[0], 0), (self.b[layer], grads[1], 1)):
                m, v = moments[k], moments[k + 2]
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                p -= 1e-3 / (1 - 0.9**step) * m / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)


class Swarm:
    """Message by message, packet by packet, in plain loops."""

    def __init__(self, net: Perceptron, channel: LossyRadio) -> None:
        self.spread, self.routes, self.channel = channel.spread, channel.routes, channel
        self.depth = len(WIDTHS)
        c = self.spread.coordinator
        self.devices = {}
        for name in range(self.spread.devices):
            units = [list(self.spread.units(name, layer)) for layer in range(self.depth)]
            units.append(list(range(CLASSES)) if name == c else [])
            self.devices[name] = Device(name, units, net)
        self.draws = channel.draws(TRAINING)
        self.updates = 0

    def arrives(self, step: int, slot: int, sender: int, receiver: int) -> bool:
        if sender == receiver:
            return True

        def crosses(a: int, b: int, attempt: int) -> bool:
            return uniform(self.draws, step, slot, a, b, attempt) < self.channel.delivery[a, b]

        via = int(self.routes.via[sender, receiver])
        direct = int(self.routes.direct[slot, sender, receiver])
        relayed = int(self.routes.relayed[slot, sender, receiver])
        return any(crosses(sender, receiver, a) for a in range(direct)) or any(
            crosses(sender, via, a) and crosses(via, receiver, a) for a in range(relayed)
        )

    def owners(self, layer: int) -> dict[int, list[int]]:
        return {n: d.units[layer] for n, d in self.devices.items() if d.units[layer]}

    def step(self, step: int, x: Array, y: NDArray[np.int64]) -> Array | None:
        """One batch; the output at the coordinator, None where the batch was given up."""
        c, lost = self.spread.coordinator, False
        update = self.channel.update
        values: dict[int, Array] = {c: x}
        senders = {c: list(range(INPUTS))}
        widths = [INPUTS, *WIDTHS]
        active: list[dict[int, Array]] = []
        for device in self.devices.values():
            device.grads = [(np.zeros_like(w), np.zeros_like(b)) for w, b in device.both()]
        for layer in range(self.depth + 1):
            new: dict[int, Array] = {}
            for name in self.owners(layer):
                heard = {s: v for s, v in values.items() if self.arrives(step, layer, s, name)}
                lost |= len(heard) < len(values)
                own = values.get(name) if layer else None
                z = self.devices[name].forward(layer, heard, senders, widths[layer], update, own)
                new[name] = z if layer == self.depth else np.maximum(z, 0)
            values, senders = new, self.owners(layer)
            active.append(new)
        output = values[c]
        g = np.exp(output - output.max(axis=1, keepdims=True))
        g /= g.sum(axis=1, keepdims=True)
        g[np.arange(BATCH), y] -= 1
        gradients = {c: g / BATCH}
        for layer in reversed(range(self.depth + 1)):
            before = self.owners(layer - 1) if layer else {c: list(range(INPUTS))}
            sums = {s: np.zeros((BATCH, len(u))) for s, u in before.items()}
            for name, gradient in gradients.items():
                for to, message in self.devices[name].backward(layer, gradient, before).items():
                    if layer:
                        if self.arrives(step, self.depth + layer, name, to):
                            sums[to] += message
                        else:
                            lost = True
            if layer:
                gradients = {s: v * (active[layer - 1][s] > 0) for s, v in sums.items()}
        if update == "none" and lost:
            return None
        self.updates += 1
        for device in self.devices.values():
            device.adam(self.updates)
        return output

    def gather(self, net: Perceptron) -> list[tuple[Array, Array]]:
        found = [
            (w.numpy().copy(), b.numpy().copy())
            for w, b in zip(net.weights, net.biases, strict=True)
        ]
        for device in self.devices.values():
            for layer, units in enumerate(device.units):
                found[layer][0][units], found[layer][1][units] = device.w[layer], device.b[layer]
        return found


def new_net(update: LostValues = "zero") -> Perceptron:
    sizes = (INPUTS, *WIDTHS, CLASSES)
    return Perceptron(sizes, seed=3, update=update, dtype=torch.float64)


def channel_of(spread: Spread, routes: Routes, exponent: float, update: LostValues) -> LossyRadio:
    delivery = PLACE.delivery(exponent)
    return LossyRadio(spread, routes, delivery, seed=5, update=update, dtype=torch.float64)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [
        (torch.rand(BATCH, INPUTS, generator=random, dtype=torch.float64),
         torch.randint(CLASSES, (BATCH,), generator=random))
        for _ in range(count)
    ]  # fmt: skip


def agree(channel: LossyRadio, steps: int = 4) -> int:
    """Trains both ways; every output, weight and bias equal to 1e-6. How many updates were made."""
    net = new_net(channel.update)
    swarm = Swarm(net, channel)
    masks = channel.masks(TRAINING, 0, steps)
    made = 0
    for step, (x, y) in enumerate(batches(steps)):
        before = net.logits(x[None], channel.masks(TRAINING, step, 1))[0].numpy()
        expected = swarm.step(step, x.numpy(), y.numpy())
        loss = net.step(x, y, masks.at(step))
        assert (loss is None) == (expected is None)
        if expected is None:
            assert not before.any(), "a batch that was given up has no answer"
            continue
        made += 1
        np.testing.assert_allclose(before, expected, atol=1e-6)
        for (w, b), weight, bias in zip(swarm.gather(net), net.weights, net.biases, strict=True):
            np.testing.assert_allclose(weight.numpy(), w, atol=1e-6)
            np.testing.assert_allclose(bias.numpy(), b, atol=1e-6)
    return made


@pytest.mark.parametrize("update", ["zero", "own"])
@pytest.mark.parametrize("path", ["direct", "coordinator", "subpath"])
def test_masks_equal_devices_one_by_one(path: Path, update: LostValues) -> None:
    prr = PLACE.measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    assert agree(channel_of(spread, plan_routes(path, prr, spread), 3.9, update)) == 4


@pytest.mark.parametrize("path", ["direct", "coordinator", "subpath"])
def test_a_batch_with_any_loss_is_given_up_by_both(path: Path) -> None:
    prr = PLACE.measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    routes = plan_routes(path, prr, spread)
    good = np.full((9, 9), 0.995)  # so good that some batches are whole
    channel = LossyRadio(spread, routes, good, seed=5, update="none", dtype=torch.float64)
    assert 0 < agree(channel, 12) < 12


@pytest.mark.parametrize("mapper", sorted(MAPPERS))
def test_every_mapping_is_the_same_both_ways(mapper: str) -> None:
    prr = PLACE.measured(3.9)
    spread = MAPPERS[mapper](prr, WIDTHS, None, 1)
    for update in ("zero", "own"):
        agree(channel_of(spread, plan_routes("subpath", prr, spread), 3.9, update), steps=2)


def test_repeated_and_missing_messages_are_the_same_both_ways() -> None:
    prr = PLACE.measured(4.0)
    spread = mix_mapped(prr, WIDTHS)
    random = np.random.RandomState(0)
    asked = wanted(spread)
    direct, relayed = (random.randint(0, 3, asked.shape) * asked for _ in range(2))
    via = random.randint(0, spread.devices, (spread.devices, spread.devices))
    agree(channel_of(spread, Routes(direct, relayed, via), 4.0, "zero"), steps=3)


def test_a_chunk_of_losses_is_the_losses_of_its_steps() -> None:
    draws = Draws(seed=7, stream=TRAINING, slots=9, devices=5, attempts=2)
    chunk = uniforms(draws, 10, 6)
    for step in range(6):
        np.testing.assert_array_equal(chunk[step], uniforms(draws, 10 + step, 1)[0])
    assert uniform(draws, 12, 3, 1, 4, attempt=1) == chunk[2, 1, 3, 1, 4]
    assert not np.array_equal(chunk, uniforms(Draws(7, TESTING, 9, 5, 2), 10, 6))
    assert not np.array_equal(chunk, uniforms(Draws(8, TRAINING, 9, 5, 2), 10, 6))


def test_messages_arrive_as_often_as_their_chance_says() -> None:
    prr = PLACE.measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    channel = channel_of(spread, plan_routes("subpath", prr, spread), 3.9, "zero")
    share = channel.heard(TRAINING, 0, 4000).mean(axis=0)
    np.testing.assert_allclose(share, chance(channel.routes, channel.delivery), atol=0.05)
    assert channel.heard(TRAINING, 0, 3).shape == (3, slots(spread), 9, 9)


def test_rescaling_keeps_a_receiver_s_weight_as_expected_whatever_got_lost() -> None:
    prr = PLACE.measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    routes = plan_routes("subpath", prr, spread)
    expected = chance(routes, prr)
    plain = LossyRadio(spread, routes, PLACE.delivery(3.9), seed=5, dtype=torch.float64)
    scaled = dataclasses.replace(plain, expected=expected).masks(TRAINING, 0, 50)
    for b, mask in enumerate(scaled.hidden, start=1):
        into, out = spread.owners[b - 1], spread.owners[b]
        wanted_sums = torch.from_numpy(expected[b][np.ix_(into, out)].sum(axis=0))
        sums = mask.sum(dim=2)
        heard_something = sums > 0
        close = torch.isclose(sums, wanted_sums.expand_as(sums))
        assert bool((close | ~heard_something).all())
        assert bool(heard_something.any())
    lossy = plain.masks(TRAINING, 0, 50)
    assert all(
        torch.equal(a, b) for a, b in zip(scaled.back_hidden, lossy.back_hidden, strict=True)
    )


def small_data(samples: int = 200) -> Dataset:
    random = torch.Generator().manual_seed(1)
    y = torch.randint(CLASSES, (samples,), generator=random)
    x = (
        torch.rand(samples, 1, 1, INPUTS, generator=random)
        + 0.8 * torch.eye(INPUTS)[y][:, None, None]
    )
    return Dataset("small", x, y, x, y, CLASSES)


def test_a_network_learns_under_loss_and_testing_does_not_change_training() -> None:
    prr = PLACE.measured(3.7)
    spread = mix_mapped(prr, WIDTHS)
    channel = LossyRadio(spread, plan_routes("subpath", prr, spread), PLACE.delivery(3.7), seed=2)
    nets = [Perceptron((INPUTS, *WIDTHS, CLASSES), seed=3, rate=1e-2) for _ in range(2)]
    often = train(nets[0], small_data(), channel, epochs=30, batch=20, every=10)
    once = train(nets[1], small_data(), channel, epochs=30, batch=20, every=300)
    assert torch.equal(nets[0].flat, nets[1].flat)
    assert len(often.accuracies) == 30
    assert once.steps == [300]
    assert often.accuracies[-1] > 0.7 > often.accuracies[0] + 0.1
    first, again = (evaluate(nets[0], small_data(), channel, test=1) for _ in range(2))
    assert first == again


def test_fewer_samples_than_a_batch_are_refused() -> None:
    prr = PLACE.measured(3.9)
    spread = mix_mapped(prr, WIDTHS)
    channel = LossyRadio(spread, plan_routes("direct", prr, spread), PLACE.delivery(3.9))
    with pytest.raises(InputError, match="40 samples are fewer than a batch of 100"):
        train(Perceptron((INPUTS, *WIDTHS, CLASSES)), small_data(40), channel)
