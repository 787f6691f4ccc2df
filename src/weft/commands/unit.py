"""A systemd unit for a node: `weft node --name pi --print-unit` prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

UNIT = """\
# Put it into /etc/systemd/system/weft-{name}.service, then: systemctl enable --now weft-{name}
[Unit]
Description=Weft node {name}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart={command}
Restart=on-failure
RestartSec=2
# A node needs no rights of its own, and reads only its keys.
NoNewPrivileges=true
ProtectSystem=strict
PrivateTmp=true
ReadWritePaths=-{settings}

[Install]
WantedBy=multi-user.target
"""


def unit(name: str, arguments: Sequence[str], user: str, settings: str) -> str:
    """The text of the unit. `arguments` follow `weft node`; `settings` is the folder of the keys."""
    words = [sys.executable, "-m", "weft", "node", *arguments]
    command = " ".join(_quoted(word) for word in words)
    return UNIT.format(name=name, user=user, command=command, settings=_quoted(settings))


def this_user() -> str:
    """Who types: the unit runs the node with the same keys."""
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _quoted(word: str) -> str:
    """As systemd reads it: % and $ have a meaning of their own there."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if any(c in word for c in " \t\"'\\;") else text
