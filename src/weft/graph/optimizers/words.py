"""What training keeps for each weight, in a few words that a plan carries: "sgd", "adam amsgrad".

    slots_of("adam amsgrad")       # 3 tensors of the weight's size, besides the weight and its gradient

The first word is an optimizer's name. Each of the other words is one more tensor, but `clip`. A planner needs
nothing else, so this module imports no torch.
"""

from __future__ import annotations

from weft.errors import InputError

# Tensors of a weight's size that each optimizer keeps for it. `adafactor` keeps one for a vector and less for
# a matrix (a row and a column): one is counted.
SLOTS: dict[str, int] = {
    "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adagrad": 1, "adadelta": 2, "adamax": 2,
    "nadam": 2, "radam": 2, "rmsprop": 1, "rprop": 2, "asgd": 1, "adafactor": 1, "muon": 1,
}  # fmt: skip
# One more tensor: the largest second moment, the mean gradient, the momentum, the running mean of weights.
EXTRA = ("amsgrad", "centered", "momentum", "ema")
CLIP = "clip"  # gradients are limited by the norm of all of them; nothing is kept for that
# Optimizers that look at a weight as a whole: a device must hold all of it.
WHOLE_WEIGHTS = ("adafactor", "muon")
# Optimizers whose update needs no room for intermediate results.
IN_PLACE = ("sgd", "momentum")


def slots_of(words: str) -> int:
    """Tensors of a weight's size that are kept for it. Raises InputError for an unknown word."""
    name, *extra = words.split() or [""]
    if name not in SLOTS:
        raise InputError(f"optimizer = {words!r}; allowed are {', '.join(SLOTS)}")
    for word in extra:
        if word not in (*EXTRA, CLIP):
            raise InputError(
                f"optimizer = {words!r}: after the name {', '.join((*EXTRA, CLIP))} are allowed"
            )
    return SLOTS[name] + len([word for word in extra if word != CLIP])


def clips_norm(words: str) -> bool:
    """Whether gradients are limited by the norm of all of them."""
    return CLIP in words.split()


def works_in_place(words: str) -> bool:
    """Whether an update makes no intermediate results of a weight's size."""
    return words.split()[0] in IN_PLACE
