"""The parts of all runs, and which of them a page has not heard of yet.

feed = Feed(Path("runs"))
feed.refresh()                       # looks at all folders
for message in feed.since(heard): ...  # JSON, one message for each part that has changed
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from weft.web.folder import RunFolder, runs_in

NO_RUN = ""  # of messages about all runs


class Feed:
    """Every part has the number of the change that it came with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, RunFolder] = {}
        self.number = 0
        self._messages: dict[tuple[str, str], tuple[int, bytes]] = {}

    def refresh(self) -> bool:
        """Looks at all folders. Whether anything has changed."""
        before, paths = self.number, runs_in(self.folder)
        if list(paths) != list(self.runs) or not self.number:
            self.runs = {
                name: self.runs.get(name) or RunFolder(name, path) for name, path in paths.items()
            }
            gone = [key for key in self._messages if key[0] not in {*paths, NO_RUN}]
            for key in gone:
                del self._messages[key]
            self._say(NO_RUN, "runs", list(paths))
        for name, run in self.runs.items():
            for part in sorted(run.read()):
                self._say(name, part, run.parts[part])
        return self.number > before

    def _say(self, run: str, part: str, value: object) -> None:
        # A page may ask meanwhile: a change has its number only when its message is there.
        message = msgspec.json.encode({"run": run, "part": part, "value": value})
        self._messages[run, part] = self.number + 1, message
        self.number += 1

    def since(self, number: int) -> list[bytes]:
        """The messages of all changes after this one, in their order."""
        return [message for at, message in sorted(list(self._messages.values())) if at > number]
