"""Makes the pictures of the pages by what the pages say: their commands, and the tests that walk them.

    python docs/write_pictures.py               all pictures, in some minutes; `make pictures` calls it
    python docs/write_pictures.py web tutorial  these
    python docs/write_pictures.py --list        what makes which

A picture is replaced only when all that was asked for has worked. The map of the city needs the data in
$WEFT_DATA, and is left out without them. Look at each picture before you commit it: the tests check what a
page holds, not whether it looks right.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
LIMIT_S = 1200.0
MAP = "edgemove-map"
# A test takes the picture of its name when WEFT_PICTURES is a folder.
TESTS = {
    "web": "tests/web/test_city.py",
    "web-loss": "tests/web/test_browser.py::test_a_run_its_loss_of_a_device_and_its_recovery_appear",
    "tutorial": "tests/docs/test_tutorial.py",
}
# A command, and the file that it writes.
COMMANDS = {
    "gantt": ("weft demo --out demo", "demo/gantt.png"),
    "plan": (
        "weft plan lenet5 --fleet examples/fleets/demo.toml --strategy chain --batch 64 "
        "--set devices=pi,nuc,cloud --set micro_batches=2 --set in_flight=2 -o plan.json --draw plan.png",
        "plan.png",
    ),
    MAP: ("weft reproduce edgemove --quick --out city", "city/map_edgemove.png"),
}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="pictures; all if none")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args(words)
    every = [*TESTS, *COMMANDS]
    if unknown := sorted(set(given.names) - set(every)):
        parser.error(f"there is no picture {', '.join(unknown)}; there are: {', '.join(every)}")
    names = given.names or every
    if given.list:
        print("\n".join(f"{name}.png: {TESTS.get(name) or COMMANDS[name][0]}" for name in names))
        return 0
    if MAP in names and not (Path(os.environ.get("WEFT_DATA", "")) / "eua").is_dir():
        print(f"{MAP}: left out, because $WEFT_DATA has no servers of a real city")
        names = [name for name in names if name != MAP]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(ROOT / "examples", folder / "examples")
        failed = [name for name in names if not made(name, folder)]
        if failed:
            print(f"not made: {', '.join(failed)}; all pictures are as before")
            return 1
        for name in names:
            shutil.copyfile(folder / f"{name}.png", PICTURES / f"{name}.png")
    print(f"wrote {len(names)} pictures to {PICTURES.relative_to(ROOT)}; look at them")
    return 0


def made(name: str, folder: Path) -> bool:
    """Makes one picture in a folder; False, with what was said, if that did not work."""
    print(f"{name}: {TESTS.get(name) or COMMANDS[name][0]}", flush=True)
    environment = {**os.environ, "WEFT_PICTURES": str(folder)}
    if name in TESTS:
        command, place = [sys.executable, "-m", "pytest", "-q", "-m", "proof", TESTS[name]], ROOT
    else:
        command = [sys.executable, "-m", "weft", *shlex.split(COMMANDS[name][0])[1:]]
        place = folder
    done = subprocess.run(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if name in COMMANDS and done.returncode == 0:
        (folder / COMMANDS[name][1]).replace(folder / f"{name}.png")
    worked = done.returncode == 0 and (folder / f"{name}.png").exists()  # a skipped test makes none
    if not worked:
        print(done.stdout[-2000:])
    return worked


if __name__ == "__main__":
    sys.exit(main())
