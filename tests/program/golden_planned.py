"""Golden plans that strategies decide: each on a small network and a fleet that it is made for."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from golden_tasks import (
    ALIKE,
    CELL,
    CITY,
    EQUAL,
    HOURGLASS,
    PEERS,
    SLOW,
    SWARM,
    TIERS,
    TIGHT,
    UNEQUAL,
    plan,
)

from weft.plans.plan import Plan
from weft.strategies.stitchnet.copies import copied


def planned() -> dict[str, Plan]:
    """Every strategy, to train and to infer where it can do both, by the name of its file."""
    return {**_whole_layers(), **_samples(), **_in_flight(), **_rounds(), **_swarms(), **_peers()}


def _whole_layers() -> dict[str, Plan]:
    lenet = partial(plan, model="lenet5", batch=16)
    return {
        "all-device-lenet5": lenet("all-device", fleet=TIERS),
        "all-device-lenet5-infer-mb3": lenet(
            "all-device", fleet=TIERS, batch=8, mode="infer", micro_batches=3
        ),
        "all-edge-lenet5-mb4-ahead3": lenet("all-edge", fleet=TIERS, micro_batches=4, ahead=3),
        "all-edge-lenet5-infer": lenet("all-edge", fleet=TIERS, batch=1, mode="infer"),
        "all-cloud-lenet5-input-int8-adam": lenet(
            "all-cloud", fleet=TIERS, input_codec="int8", optimizer="adam"
        ),
        "all-cloud-lenet5-infer-mb4-flight2-store": lenet(
            "all-cloud",
            fleet=TIERS,
            mode="infer",
            micro_batches=4,
            in_flight=2,
            input_codec="fp16",
            codec="fp16",
            route="store_and_forward",
        ),
        "chain-lenet5": lenet("chain", fleet=TIERS),
        "chain-lenet5-mb4-fp16": lenet(
            "chain", fleet=SLOW, devices="pi,nuc,cloud", micro_batches=4, codec="fp16"
        ),
        "chain-lenet5-mb5-flight1-adamw": lenet(
            "chain", fleet=SLOW, devices="pi,nuc", micro_batches=5, in_flight=1, optimizer="adamw"
        ),
        "chain-lenet5-source-later-mb4": lenet(
            "chain", fleet=TIERS, devices="nuc,pi", micro_batches=4, in_flight=2
        ),
        "chain-lenet5-source-none-mb8-store": lenet(
            "chain",
            fleet=TIERS,
            devices="nuc,cloud",
            micro_batches=8,
            codec="int8",
            input_codec="int8",
            route="store_and_forward",
        ),
        "chain-lenet5-memory": lenet("chain", fleet=TIGHT, optimizer="adam"),
        "chain-lenet5-infer": lenet("chain", fleet=TIERS, batch=1, mode="infer"),
        "chain-lenet5-infer-throughput-mb6": lenet(
            "chain",
            fleet=SLOW,
            batch=6,
            mode="infer",
            objective="throughput",
            micro_batches=6,
            in_flight=3,
        ),
        "chain-resnet8-mb2": plan(
            "chain", "resnet8", TIERS, 8, devices="pi,nuc,cloud", micro_batches=2
        ),
        "chain-resnet8-infer-source-later": plan(
            "chain", "resnet8", TIERS, 4, "infer", devices="cloud,pi", micro_batches=2, codec="fp16"
        ),
        "chain-transformer-mb4": plan(
            "chain", "transformer", SLOW, 8, devices="nuc,pi,cloud", micro_batches=4
        ),
        "jointdnn-hourglass-back": plan("jointdnn", HOURGLASS, SLOW, 16),
        "jointdnn-hourglass-infer-back-fp16": plan(
            "jointdnn", HOURGLASS, SLOW, 1, "infer", codec="fp16"
        ),
        "jointdnn-lenet5-stays-mb4": lenet("jointdnn", fleet=SLOW, micro_batches=4),
        "jointdnn+-hourglass-back-int8": plan("jointdnn+", HOURGLASS, TIERS, 16, codec="int8"),
        "jointdnn+-hourglass-infer-back": plan("jointdnn+", HOURGLASS, TIERS, 1, "infer"),
        "jointdnn+-resnet8-infer": plan("jointdnn+", "resnet8", TIERS, 1, "infer"),
        "jalad-hourglass": plan("jalad", HOURGLASS, TIERS, 16),
        "jalad-hourglass-source-edge-mb2": plan(
            "jalad", HOURGLASS, TIERS, 16, source="nuc", micro_batches=2
        ),
        "jalad-hourglass-infer-mb4": plan("jalad", HOURGLASS, TIERS, 8, "infer", micro_batches=4),
    }


def _samples() -> dict[str, Plan]:
    """Layers and samples."""
    lenet = partial(plan, model="lenet5")
    return {
        "hiertrain-lenet5": lenet("hiertrain", fleet=TIERS, batch=32),
        "hiertrain-lenet5-alone-store": lenet(
            "hiertrain", fleet=SLOW, batch=48, route="store_and_forward"
        ),
        "hiertrain-cnn5-lanes-fp16": plan(
            "hiertrain", "cnn5", ALIKE, 32, codec="fp16", input_codec="int8"
        ),
        "hiertrain-vgg-small-lanes-adam": plan(
            "hiertrain", "vgg-small", ALIKE, 32, optimizer="adam"
        ),
        "hiertrain-resnet8-cloud-adam": plan("hiertrain", "resnet8", TIERS, 12, optimizer="adam"),
        "hiertrain+-lenet5": lenet("hiertrain+", fleet=TIERS, batch=32),
        "hiertrain+-lenet5-slow-exact": lenet("hiertrain+", fleet=SLOW, batch=24, codecs="none"),
        "hiertrain+-cnn5-lanes": plan("hiertrain+", "cnn5", ALIKE, 24, route="store_and_forward"),
        "hiertrain+-vgg-small-lanes-exact": plan(
            "hiertrain+", "vgg-small", ALIKE, 24, codecs="none"
        ),
        "hiertrain+-resnet8-as-hiertrain": plan("hiertrain+", "resnet8", ALIKE, 24),
        "hiertrain+-cnn5-source-last": plan("hiertrain+", "cnn5", EQUAL, 24),
        "hiertrain+-resnet8-source-last-exact": plan(
            "hiertrain+", "resnet8", EQUAL, 24, codecs="none"
        ),
        "hiertrain+-transformer-as-jointdnn+": plan(
            "hiertrain+", "transformer", SLOW, 12, codecs="weights"
        ),
    }


def _in_flight() -> dict[str, Plan]:
    """Several minibatches at once."""
    lenet = partial(plan, model="lenet5", fleet=CITY)
    return {
        "edgemove-lenet5": lenet("edgemove", batch=16),
        "edgemove-lenet5-flight3-home-fp16": lenet(
            "edgemove", batch=16, in_flight=3, labels="home", codec="fp16"
        ),
        "edgemove-resnet8-flight1": plan("edgemove", "resnet8", CITY, 8, in_flight=1),
        "edgemove+-lenet5-codecs": lenet("edgemove+", batch=16, codecs="all"),
        "edgemove+-resnet8-home": plan(
            "edgemove+", "resnet8", CITY, 16, labels="home", optimizer="adamw"
        ),
        "device-cloud-lenet5": lenet("device-cloud", batch=16, codec="int8"),
        "pipedream-e-lenet5-seed2-flight4": lenet("pipedream-e", batch=16, seed=2, in_flight=4),
    }


def _rounds() -> dict[str, Plan]:
    lenet = partial(plan, model="lenet5", fleet=CELL, mode="infer")
    return {
        "coopai-lenet5": lenet("coopai", batch=1),
        "coopai-lenet5-three-overlap-mb4-flight2": lenet(
            "coopai", batch=4, devices=3, overlap="on", micro_batches=4, in_flight=2
        ),
        "coopai-resnet8-two-int8": plan(
            "coopai", "resnet8", CELL, 1, "infer", devices=2, codec="int8", input_codec="int8"
        ),
        "sls-lenet5-two": lenet("sls", batch=1, devices=2),
        "sls-lenet5-three-fp16-mb2": lenet(
            "sls", batch=2, devices=3, codec="fp16", micro_batches=2
        ),
        "coopai+-lenet5": lenet("coopai+", batch=1, polish=40, gateway="off"),
        "coopai+-lenet5-stream-flight4": lenet(
            "coopai+",
            batch=6,
            objective="throughput",
            in_flight=4,
            polish=20,
            gateway="off",
            frames="cut",
        ),
        "coopai+-vgg-small-fp16": plan(
            "coopai+", "vgg-small", CELL, 1, "infer", codec="fp16", polish=40, gateway="off"
        ),
        "coopai+-convolutions-three-even": plan(
            "coopai+",
            "convolutions",
            CELL,
            2,
            "infer",
            devices=3,
            shares="even",
            polish=20,
            gateway="off",
        ),
    }


def _swarms() -> dict[str, Plan]:
    small = partial(plan, model="perceptron", fleet=SWARM, batch=10)
    found = {
        "stitchnet-perceptron": small("stitchnet"),
        "stitchnet-perceptron-own-slots": small("stitchnet", update="own", slot_ms=20, every=5),
        "stitchnet-perceptron-none-coordinator-int8": small(
            "stitchnet", update="none", path="coordinator", codec="int8", input_codec="fp16"
        ),
        "stitchnet-convolutions-probed-reverse": plan(
            "stitchnet",
            "convolutions",
            SWARM,
            4,
            probes=20,
            mapping="reverse",
            path="direct",
            optimizer="adam",
        ),
        "stitchnet-perceptron-infer": small("stitchnet", mode="infer", batch=1),
        "stitchnet+-perceptron": small("stitchnet+"),
        "stitchnet+-perceptron-unequal-six-packets-fp16": small(
            "stitchnet+", fleet=UNEQUAL, packets=6, codec="fp16"
        ),
        "stitchnet+-perceptron-infer-eight-packets-own": small(
            "stitchnet+", fleet=UNEQUAL, mode="infer", packets=8, update="own"
        ),
        "stitchnet+-perceptron-infer-rescale": small(
            "stitchnet+", mode="infer", batch=2, rescale="yes"
        ),
    }
    # A run chooses the copies, by the weights. These stand for weights.
    importance = [np.arange(width, dtype=np.float64) * 7 % 5 for width in (12, 9)]
    asked = small("stitchnet+", mode="infer", batch=2, copies=40)
    found["stitchnet+-perceptron-infer-copies"] = copied(asked, importance)
    for name in ("vertical", "horizontal", "random-units", "average-layers"):
        found[f"{name}-perceptron"] = small(name)
        found[f"{name}-perceptron-infer"] = small(name, mode="infer", batch=1, path="direct")
    return found


def _peers() -> dict[str, Plan]:
    cnn = partial(plan, model="cnn5", fleet=PEERS, batch=8, steps=3, rounds=2)
    ring = cnn("decoupled")
    assert ring.peers is not None
    end = msgspec.structs.replace(ring.peers, structures="end", tail=2)
    return {
        "decoupled-cnn5-ring": ring,
        "decoupled-cnn5-ring-end": msgspec.structs.replace(ring, peers=end),
        "decoupled-cnn5-gossip-mesh-fp16": cnn(
            "decoupled", shared="gossip", topology="mesh", codec="fp16"
        ),
        "decoupled-cnn5-hub-line": cnn(
            "decoupled",
            shared="hub",
            topology="0-1,1-2",
            classes="0,1,2,3/3,4,5,6/6,7,8,9",
            optimizer="adam",
        ),
        "decoupled+-cnn5": cnn("decoupled+"),
        "decoupled+-cnn5-overlap-mesh": cnn("decoupled+", overlap=3, topology="mesh", codec="none"),
        "fedavg-cnn5-ring": cnn("fedavg"),
        "fedavg-lenet5-hub": plan("fedavg", "lenet5", PEERS, 4, steps=5, shared="hub"),
    }
