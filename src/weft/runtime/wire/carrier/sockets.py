"""The settings that both ends of a connection for tensors have."""

from __future__ import annotations

import socket

# A router that forgets an idle connection tells nobody. The system would look after two hours.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, times


def set_up(connection: socket.socket) -> None:
    """Messages leave at once, and a connection whose other end is out of reach is noticed in half a minute.
    OSError where the connection has ended already."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):  # not every system can set it
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
