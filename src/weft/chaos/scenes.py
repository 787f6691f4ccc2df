"""What goes wrong in a run: random scripts of faults. The same seed and number give the same script.

script = draw(seed=3, number=0, scenes=(Scene.kill, Scene.silence), count=4, steps=300)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum

from weft.fleet.faults import COORDINATOR, During, Faults

BACK_S = (0.3, 1.5)  # seconds until a killed device is started again
MOMENT_S = 0.1  # a fault comes so long after its minibatch at most


class Scene(str, Enum):
    """One thing that happens to a run, made of one or several faults."""

    kill = "kill"  # a device is killed and comes back
    restart = "restart"  # a device is killed and is back at once
    silence = "silence"  # a device stops for some seconds
    cut = "cut"  # a link is cut for some seconds
    slow = "slow"  # a device gets eight times slower for some seconds
    two = "two"  # two devices are killed at once
    recovery = "recovery"  # a second device is killed while the run recovers from the first
    save = "save"  # a device is killed while the run saves
    coordinator = "coordinator"  # the process of the run is killed; it is resumed from its folder
    disk = "disk"  # nothing can be written for a second


def draw(seed: int, number: int, scenes: Sequence[Scene], count: int, steps: int) -> Faults:
    """The script of run `number`: `count` scenes, each at a random moment of its own stretch of the run."""
    dice = random.Random(f"{seed} {number}")
    stretch = steps // (count + 1)
    script = Faults(seed=dice.getrandbits(30))
    for place in range(count):
        first = stretch // 3 + place * stretch
        step = dice.randrange(first, first + max(1, stretch // 2))
        script = _played(script, scenes[(number * count + place) % len(scenes)], step, dice)
    return script


def _played(script: Faults, scene: Scene, step: int, dice: random.Random) -> Faults:
    moment = round(dice.uniform(0.0, MOMENT_S), 4)
    back = round(dice.uniform(*BACK_S), 3)
    match scene:
        case Scene.kill:
            return script.kill(step=step, after_s=moment).restart(after_s=back)
        case Scene.restart:
            return script.kill(step=step, after_s=moment).restart(after_s=back / 10)
        case Scene.silence:
            return script.silence(step=step, after_s=moment, for_s=round(1.0 + 1.5 * back, 3))
        case Scene.cut:
            return script.cut(step=step, after_s=moment, for_s=back)
        case Scene.slow:
            return script.slow(step=step, after_s=moment, x=8.0, for_s=round(1.5 * back, 3))
        case Scene.two:
            both = script.kill(step=step, after_s=moment).kill(step=step, after_s=moment)
            return both.restart(after_s=back).restart(after_s=back)
        case Scene.recovery:
            first = script.kill(step=step, after_s=moment)
            second = first.kill(step=step, during=During.recovery, after_s=moment)
            return second.restart(after_s=back).restart(after_s=back)
        case Scene.save:
            return script.kill(step=step, during=During.save).restart(after_s=back)
        case Scene.coordinator:
            return script.kill(COORDINATOR, step=step, after_s=moment)
        case Scene.disk:
            return script.fill_disk(step=step, for_s=1.0)
