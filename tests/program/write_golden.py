"""Writes the golden programs: `golden/NAME.json`, each a plan and the program that it is lowered to.

    python tests/program/write_golden.py                  # decide every plan anew, lower it, write it
    python tests/program/write_golden.py --keep-plans     # only lower and price the recorded plans anew

`test_golden.py` reads these files. The script is run by hand, and only for a reason: the first form where
another plan is to be recorded, the second where the program or the price of a plan has changed on purpose
or a plan has got a new field. `git diff` then shows every instruction that changed, one in a line.

The same source gives the same files: nothing here is drawn by chance or measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from golden_by_hand import by_hand
from golden_planned import planned

from weft.plans.plan import Plan
from weft.program.lower.lower import lower
from weft.simulate.price import price

FOLDER = Path(__file__).parent / "golden"


class Recorded(msgspec.Struct):
    """What is read of a golden file to write it again."""

    plan: Plan


def main() -> None:
    if sys.argv[1:] == ["--keep-plans"]:
        plans = {
            path.stem: msgspec.json.decode(path.read_bytes(), type=Recorded).plan
            for path in sorted(FOLDER.glob("*.json"))
        }
    elif sys.argv[1:]:
        raise SystemExit(f"{' '.join(sys.argv[1:])} is not allowed; give --keep-plans or nothing")
    else:
        plans = {**planned(), **by_hand()}
        for path in FOLDER.glob("*.json"):
            path.unlink()
    FOLDER.mkdir(exist_ok=True)
    for name, plan in plans.items():
        text = golden_text(plan)
        (FOLDER / f"{name}.json").write_bytes(text)
        print(f"{name:50} {len(text):8} bytes  {', '.join(plan.devices)}")
    print(f"{len(plans)} plans")


def golden_text(plan: Plan) -> bytes:
    """The file of a plan: the plan in one line, then a line for each instruction."""
    # Planning time differs from run to run. The price goes with the plan.
    plan = msgspec.structs.replace(plan, planning_s=0.0, predicted=price(plan))
    plan = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)  # as a reader will have it
    code = lower(plan).code
    devices = [
        msgspec.json.encode(device) + b":[\n" + b",\n".join(map(msgspec.json.encode, body)) + b"]"
        for device, body in code.items()
    ]
    return (
        b'{"plan":' + msgspec.json.encode(plan) + b',\n"program":{' + b",\n".join(devices) + b"}}\n"
    )


if __name__ == "__main__":
    main()
