"""Writes city-1.json, city-2.json and city-3.json: three walks through the generated city.

    python examples/traces/write_city.py

Each trace takes a minute and a half. One second of the trace is five seconds of the walk. The seeds are the
numbers in the files' names.
"""

from pathlib import Path

from weft.fleet.city import Day, generated_city
from weft.fleet.city_trace import city_trace, write_trace
from weft.fleet.fleet import Fleet
from weft.fleet.mobility import Walk

HERE = Path(__file__).resolve().parent
SEEDS = (1, 2, 3)
LENGTH_S, HURRY, SPEED = 90.0, 5.0, 5.0


def recorded(seed: int) -> str:
    city = generated_city(seed)
    day = Day(city, Walk(city.box, SPEED, seed), seed)
    fleet = Fleet.load(HERE.parent / "fleets" / "city.toml")
    return write_trace(city_trace(day, fleet, LENGTH_S, HURRY))


if __name__ == "__main__":
    for seed in SEEDS:
        (HERE / f"city-{seed}.json").write_text(recorded(seed))
