"""Draws of benchmarks/plus.py in which a strategy with a plus once lost to a rival."""

from __future__ import annotations

import msgspec
import pytest

from weft.errors import InputError
from weft.loom.draw import from_text
from weft.loom.planned import task_of
from weft.planning.decide import decide

# The codecs of hiertrain+ made a sample of a few bytes larger.
TINY = (
    '{"net":{"kind":"profile","layers":2,"seed":494898,"classes":1,"times":"random"},"fleet":{"device":'
    '[{"name":"d0","gflops":0.149,"data":true},{"name":"d1","tier":"edge","gflops":26.762},{"name":"d2",'
    '"tier":"cloud","gflops":539.284}],"link":[{"between":["d0","d1"],"up_mbps":84.67,"down_mbps":1.2},'
    '{"between":["d1","d2"],"up_mbps":0.95,"down_mbps":0.95}]},"strategy":"hiertrain+","batch":2}'
)
# The period counted the worker's update as a part of the way of a minibatch.
UPDATE = (
    '{"net":{"kind":"zoo","shape":[1,28,28],"classes":10,"name":"lenet5"},"fleet":{"device":[{"name":"d0",'
    '"gflops":8.299},{"name":"d1","tier":"edge","gflops":2.069}],"link":[{"between":["d0","d1"],'
    '"up_mbps":182.77,"down_mbps":182.77}]},"strategy":"edgemove+","options":{"in_flight":"2"}}'
)
# The fastest device had the slowest link; no other was tried alone.
SLOW_LINK = (
    '{"net":{"kind":"norm","layers":5,"seed":239280,"shape":[1,14,7],"classes":5},"fleet":{"device":'
    '[{"name":"d0","gflops":0.171,"data":true},{"name":"d1","tier":"edge","gflops":2.946},{"name":"d2",'
    '"tier":"cloud","gflops":692.746}],"link":[{"between":["d1","d0"],"up_mbps":37.79,"down_mbps":88.9},'
    '{"between":["d0","d2"],"up_mbps":358.77,"down_mbps":1.79}]},"strategy":"coopai+","mode":"infer",'
    '"batch":16}'
)
# The fastest machine is two links away, and only neighbours were tried.
FAR = (
    '{"net":{"kind":"norm","layers":3,"seed":487630,"shape":[2,8,5],"classes":10},"fleet":{"devic'
    'e":[{"name":"x0","tier":"edge","gflops":57.738},{"name":"x1","tier":"edge","gflops":2.83},{"'
    'name":"x2","gflops":0.113}],"link":[{"between":["x1","x0"],"up_mbps":548.3,"down_mbps":548.3'
    '},{"between":["x2","x1"],"up_mbps":25.09,"down_mbps":25.09}]},"strategy":"coopai+","mode":"i'
    'nfer","batch":2}'
)
# A member of the medium has a link of its own that is faster on the way back only: the clock did not see it.
ONE_WAY = (
    '{"net":{"kind":"conv","seed":967630,"shape":[3,11,10]},"fleet":{"device":[{"name":"x0","tier'
    '":"edge","gflops":33.192},{"name":"x1","tier":"edge","gflops":10.381},{"name":"x2","tier":"c'
    'loud","gflops":620.649}],"link":[{"between":["x0","x1"],"up_mbps":9.65,"down_mbps":232.84},{'
    '"between":["x2","x1"],"up_mbps":371.75,"down_mbps":371.75,"latency_ms":57.3}],"medium":[{"na'
    'me":"air","gateway":"x0","members":["x2","x1"],"mbps":17.21,"latency_ms":5.0}]},"strategy":"'
    'coopai+","mode":"infer","batch":8,"options":{"gateway":"off"}}'
)
# Slow devices that nobody needed were peers too, and half of all peers must finish.
ONE_CLASS = (
    '{"net":{"kind":"profile","layers":8,"seed":81941,"classes":1,"times":"random"},"fleet":{"device":'
    '[{"name":"p0","gflops":5.785},{"name":"p1","gflops":0.121},{"name":"p2","gflops":0.725}],"link":'
    '[{"between":["p1","p0"],"up_mbps":8.58,"down_mbps":8.58},{"between":["p0","p2"],"up_mbps":0.13,'
    '"down_mbps":0.13},{"between":["p2","p1"],"up_mbps":0.15,"down_mbps":0.15}]},'
    '"strategy":"decoupled+","batch":32}'
)
# A class keeps at least one filter, so ten classes had ten filters where the network has five.
NARROW = (
    '{"net":{"kind":"norm","layers":3,"seed":595664,"shape":[1,10,13],"classes":10},"fleet":{"device":'
    '[{"name":"p0","gflops":6.581}],"link":[]},"strategy":"decoupled+","seed":77}'
)
# The data is on the edge machine, and a device behind it is faster than the two together.
FASTER_DEVICE = (
    '{"net":{"kind":"profile","layers":2,"seed":647420,"times":"calls"},"fleet":{"device":[{"name":"m0",'
    '"gflops":0.938},{"name":"m1","gflops":4.246},{"name":"m2","gflops":2.403},{"name":"gw","tier":"edge",'
    '"gflops":1.625,"data":true}],"link":[],"medium":[{"name":"wifi","gateway":"gw","members":["m0","m1",'
    '"m2"],"mbps":231.37,"latency_ms":0.5,"loss":0.0}]},"strategy":"edgemove+","batch":32,"seed":601}'
)


@pytest.mark.parametrize(
    ("text", "rival"),
    [
        (TINY, "hiertrain"),
        (TINY, "all-cloud"),
        (UPDATE, "pipedream-e"),
        (SLOW_LINK, "all-edge"),
        (ONE_CLASS, "fedavg"),
        (NARROW, "fedavg"),
        (FAR, "all-edge"),
        (ONE_WAY, "coopai"),
    ],
)
def test_a_strategy_with_a_plus_does_not_lose_to_its_rivals(text: str, rival: str) -> None:
    draw = from_text(text)
    seconds = []
    for name, options in ((draw.strategy, draw.options), (rival, {})):
        asked = msgspec.structs.replace(draw, strategy=name, options=options)
        predicted = decide(name, task_of(asked)).predicted
        assert predicted is not None
        seconds.append(predicted.seconds)
    assert seconds[0] <= 1.01 * seconds[1]


@pytest.mark.parametrize("strategy", ["edgemove", "edgemove+", "pipedream-e", "device-cloud"])
@pytest.mark.parametrize("text", [FASTER_DEVICE, UPDATE])
def test_samples_never_leave_the_client_of_edgemove(strategy: str, text: str) -> None:
    draw = msgspec.structs.replace(from_text(text), strategy=strategy, options={})
    try:
        plan = decide(strategy, task_of(draw))
    except InputError:
        return  # no machine of the tier that it needs
    assert next(shard.device for shard in plan.shards if shard.layers[0] == 0) == plan.source


def test_edgemove_plus_is_no_slower_than_the_client_alone_though_a_device_is_faster() -> None:
    draw = from_text(FASTER_DEVICE)
    alone = {"devices": task_of(draw).source}
    seconds = []
    for name, options in (("edgemove+", {}), ("chain", alone)):
        asked = msgspec.structs.replace(draw, strategy=name, options=options)
        predicted = decide(name, task_of(asked)).predicted
        assert predicted is not None
        seconds.append(predicted.seconds)
    assert seconds[0] <= 1.01 * seconds[1]
