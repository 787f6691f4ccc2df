"""The rules that a member's Zenoh session applies: mutual TLS, and who may use which key.

Everything is denied that is not listed here. The names are those of certificates, which TLS has checked.

| who | may |
|---|---|
| the owner | everything |
| device M | send data in its own name (data/TO/M/RUN), report (report/RUN/M), answer commands (control/M) |
| device M | be there (alive/M), echo, and see whether a run's coordinator is there (coordinator/RUN) |
| device M | ask another device for a connection for tensors, in its own name (door/TO/M) |
| whoever has a certificate of the fleet | ask a node whether that certificate still counts (fence/NODE) |

Zenoh reads the rules when a session opens. A session with another list has to be opened again.
"""

from __future__ import annotations

from typing import Any

from weft.runtime.keys.folder import Keys
from weft.runtime.keys.members import Member

EVERYTHING = (
    "put",
    "delete",
    "declare_subscriber",
    "query",
    "declare_queryable",
    "reply",
    "liveliness_token",
    "declare_liveliness_subscriber",
    "liveliness_query",
)


def settings(keys: Keys) -> dict[str, Any]:
    """Zenoh's settings for a member of the fleet."""
    return {
        "transport/link/protocols": ["tls"],
        "transport/link/tls": {
            "root_ca_certificate": keys.authority,
            "listen_private_key": keys.key,
            "listen_certificate": keys.certificate,
            "connect_private_key": keys.key,
            "connect_certificate": keys.certificate,
            "enable_mtls": True,
            # Devices change their addresses. Who somebody is, the certificate's own name says.
            "verify_name_on_connect": False,
            "close_link_on_expiration": True,
        },
        "access_control": _Rules(keys.members.fleet).all(keys),
    }


class _Rules:
    """Writes Zenoh's rules, subjects and policies."""

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._rules: list[dict[str, Any]] = []

    def all(self, keys: Keys) -> dict[str, Any]:
        members = keys.members
        out = self._rule("out", "egress", EVERYTHING, "**")
        asks = self._rule("asks", "ingress", ("query",), "fence/*")
        answered = self._rule("answered", "egress", ("reply", "declare_queryable"), "fence/*")
        commands = self._rule("commands", "ingress", EVERYTHING, "**")
        subjects: list[dict[str, Any]] = [
            {"id": "anybody"},
            {"id": "the owner", "cert_common_names": [members.owner]},
        ]
        policies: list[dict[str, Any]] = [
            {"rules": [asks, answered], "subjects": ["anybody"]},
            {"rules": [commands, out], "subjects": ["the owner"]},
        ]
        for member in members.present:
            subjects.append({"id": member.name, "cert_common_names": [member.subject]})
            policies.append({"rules": [*self._device(member), out], "subjects": [member.name]})
        return {
            "enabled": True,
            "default_permission": "deny",
            "rules": self._rules,
            "subjects": subjects,
            "policies": policies,
        }

    def _device(self, member: Member) -> list[str]:
        name = member.name
        keys = {
            "puts": (("put",), (f"data/*/{name}/*", f"report/*/{name}", f"answer/*/{name}",
                                f"beat/{name}")),
            "hears": (("declare_subscriber",), (f"data/{name}/**",)),
            "answers": (("declare_queryable", "reply"),
                        (f"control/{name}", f"echo/{name}", f"fence/{name}", f"door/{name}/*")),
            "echoes": (("query",), ("echo/*", f"door/*/{name}")),
            "lives": (("liveliness_token",), (f"alive/{name}/*",)),
            # whether the process of a run is still there
            "watches": (("declare_liveliness_subscriber", "liveliness_query"), ("coordinator/*",)),
        }  # fmt: skip
        return [
            self._rule(f"{name} {what}", "ingress", messages, *expressions)
            for what, (messages, expressions) in keys.items()
        ]

    def _rule(self, name: str, flow: str, messages: tuple[str, ...], *keys: str) -> str:
        self._rules.append(
            {
                "id": name,
                "permission": "allow",
                "flows": [flow],
                "messages": list(messages),
                "key_exprs": [f"{self._fleet}/{key}" for key in keys],
            }
        )
        return name
