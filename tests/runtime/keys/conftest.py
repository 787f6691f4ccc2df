"""The fleet that tests of keys share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.keys.lab import FLEET, Lab, serving
from weft.runtime.keys.owner import revoke
from weft.runtime.node.node import Node
from weft.runtime.wire.reach import reach


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`old` is revoked before nuc starts."""
    home = tmp_path_factory.mktemp("config")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        place = Lab(home)
        place.revoked = place.endpoints("old")
        revoke(place.folder, "old")
        with serving(Node("nuc", reach(FLEET, name="nuc"), FLEET)) as place.node:
            yield place
