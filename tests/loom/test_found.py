"""Draws that failed once, made small: each tells what was wrong, and holds now."""

from __future__ import annotations

import pytest

from weft.loom.checks import examine
from weft.loom.draw import from_text
from weft.loom.running import run_and_check

FOUND = {
    # The word that a minibatch is done waited behind samples on the same medium, so that the first eight
    # minibatches seemed faster than the gateway computes.
    "a price below the busiest device": (
        '{"net":{"kind":"profile","layers":6,"seed":900967,"classes":1},"fleet":{"device":'
        '[{"name":"gw","tier":"edge","gflops":42.995},{"name":"m0","gflops":3.0}],"medium":'
        '[{"name":"wifi","gateway":"gw","members":["m0"],"mbps":4.7}]},"strategy":"chain",'
        '"batch":4,"options":{"input_codec":"int8"}}'
    ),
    # With six minibatches in flight the queue of the uplink was still filling after sixteen rounds.
    "a price below the busiest channel": (
        '{"net":{"kind":"profile","layers":2,"seed":105822,"classes":1,"times":"calls"},"fleet":'
        '{"device":[{"name":"d0","gflops":0.7,"data":true},{"name":"d2","tier":"cloud",'
        '"gflops":400.0}],"link":[{"between":["d0","d2"],"up_mbps":0.3,"down_mbps":400.0}]},'
        '"strategy":"device-cloud","batch":4,"options":{"in_flight":"6"}}'
    ),
    # The bias before a norm has no gradient but rounding, of which adam makes whole steps.
    "a weight without a gradient": (
        '{"net":{"kind":"norm","seed":747540,"shape":[1,17,7]},"fleet":{"device":[{"name":"d0",'
        '"gflops":0.5},{"name":"d1","tier":"edge","gflops":8.0}],"link":[{"between":["d1","d0"],'
        '"up_mbps":30.0,"down_mbps":30.0}]},"strategy":"all-edge","batch":4,"options":'
        '{"micro_batches":"3"},"optimizer":"adam"}'
    ),
    # The period of the pipeline knows nothing of a last layer at home.
    "edgemove+ slower than edgemove": (
        '{"net":{"kind":"profile","layers":3,"seed":793268,"classes":1},"fleet":{"device":'
        '[{"name":"d0","gflops":0.3},{"name":"d1","tier":"edge","gflops":2.0}],"link":'
        '[{"between":["d1","d0"],"up_mbps":90.0,"down_mbps":0.1}]},"strategy":"edgemove+",'
        '"options":{"labels":"home"}}'
    ),
}


def test_a_codec_and_the_choice_of_codecs_are_refused_together() -> None:
    """Seen: edgemove+ chose no codec where int8 was given."""
    outcome = examine(from_text(
        '{"net":{"kind":"profile","layers":2,"seed":707839,"classes":1,"times":"calls"},"fleet":'
        '{"device":[{"name":"d0","gflops":0.4,"data":true},{"name":"d1","tier":"edge","gflops":1.0}],'
        '"link":[{"between":["d1","d0"],"up_mbps":100.0,"down_mbps":10.0}]},"strategy":"edgemove+",'
        '"options":{"codec":"int8","codecs":"all"}}'
    ))  # fmt: skip
    assert "give one of them" in outcome.refused
    assert not outcome.violations


def test_an_optimizer_of_whole_weights_is_refused_in_a_swarm_when_it_is_planned() -> None:
    """Seen: `plan` priced what `train` refuses. Adafactor of a device's units is another rule than Adafactor
    of the whole weight."""
    outcome = examine(from_text(
        '{"net":{"kind":"dense","layers":2,"seed":336415,"shape":[11],"classes":1},"fleet":{"device":'
        '[{"name":"p0","gflops":3.0},{"name":"p1","gflops":0.4},{"name":"p2","gflops":0.1}],"link":'
        '[{"between":["p0","p1"],"up_mbps":0.3,"down_mbps":9.0},{"between":["p2","p0"],"up_mbps":20.0,'
        '"down_mbps":20.0},{"between":["p1","p2"],"up_mbps":20.0,"down_mbps":20.0}]},'
        '"strategy":"random-units","batch":2,"optimizer":"adafactor","loss":"mse"}'
    ))  # fmt: skip
    assert "looks at each weight as a whole" in outcome.refused
    assert not outcome.violations


def test_fedavg_checks_an_option_that_it_does_not_use() -> None:
    """Seen: `last` without a value was accepted where the network itself was given."""
    outcome = examine(from_text(
        '{"net":{"kind":"zoo","shape":[1,16,16],"classes":1,"name":"vgg-small"},"fleet":{"device":'
        '[{"name":"p0","gflops":10.0,"data":true}]},"strategy":"fedavg","options":{"last":""},'
        '"wrong":"last"}'
    ))  # fmt: skip
    assert "--set last= is not allowed" in outcome.refused
    assert not outcome.violations


def test_two_options_that_say_the_same_are_refused_in_words() -> None:
    """Seen: with `classes` given, `overlap` was passed over, whatever it said."""
    outcome = examine(from_text(
        '{"net":{"kind":"profile","seed":812727,"classes":3},"fleet":{"device":[{"name":"p0",'
        '"gflops":7.0}]},"strategy":"fedavg","options":{"classes":"0,1,2","overlap":"nobody"},'
        '"wrong":"overlap"}'
    ))  # fmt: skip
    assert "give one of them" in outcome.refused
    assert not outcome.violations


@pytest.mark.parametrize("what", FOUND)
def test_what_failed_once_holds_now(what: str) -> None:
    outcome = examine(from_text(FOUND[what]))
    assert outcome.plan is not None, outcome.refused
    assert not outcome.violations


def test_a_coded_message_of_two_values_has_two_headers() -> None:
    """Seen: 8 bytes fewer than planned crossed. The plan counts a scale for each value, the loom one for
    each message."""
    outcome = run_and_check(from_text(
        '{"net":{"kind":"residual","seed":759605,"shape":[3,16,8],"classes":1},"fleet":{"device":'
        '[{"name":"m0","gflops":386363.95},{"name":"gw","tier":"edge","gflops":153746.2,"data":true}],'
        '"medium":[{"name":"wifi","gateway":"gw","members":["m0"],"mbps":1371.36}]},"strategy":"coopai+",'
        '"mode":"infer","options":{"codec":"int8","overlap":"off"},"steps":2}'
    ))  # fmt: skip
    assert outcome.ran
    assert not outcome.violations
