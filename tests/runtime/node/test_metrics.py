"""A node's numbers: read by Prometheus' own parser, from a real port; closed to who is not of the fleet."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from weft.errors import InputError
from weft.runtime.keys.invite import take_invite
from weft.runtime.keys.owner import invite, new_fleet, revoke
from weft.runtime.node import metrics
from weft.runtime.node.metrics import HELP, exposition, node_samples, serve_metrics
from weft.runtime.node.node import Node
from weft.runtime.wire.reach import keys_of
from weft.runtime.wire.session import Endpoints, free_endpoint
from weft.web import prometheus

ROOT = Path(__file__).resolve().parents[3]


def read(address: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(address, timeout=20, context=context) as answer:
        return str(answer.read().decode())


def test_a_prometheus_client_reads_what_a_node_says() -> None:
    with Node("pi", Endpoints(listen=(free_endpoint(),)), "metrics") as node:
        text = lambda: exposition(HELP, node_samples(node, 0.0))  # noqa: E731
        with serve_metrics(0, None, text) as address:
            assert address.startswith("http://127.0.0.1:")
            families = {f.name: f for f in text_string_to_metric_families(read(address))}
            with pytest.raises(urllib.error.HTTPError) as missing:
                read(address.replace("/metrics", "/etc/passwd"))
            assert missing.value.code == 404
            missing.value.close()
    assert families["weft_node_info"].samples[0].labels["node"] == "pi"
    assert families["weft_node_busy"].samples[0].value == 0
    cpu = families["weft_node_cpu_seconds"]
    assert (cpu.type, cpu.samples[0].value > 0) == ("counter", True)
    said = {f"{n}_total" if f"{n}_total" in HELP else n for n in families}
    assert said <= set(HELP)


def test_words_in_labels_are_escaped() -> None:
    text = exposition({"x": "words"}, [("x", {"a": 'b"\\\nc'}, 1.0)])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels["a"] == 'b"\\\nc'


def test_with_keys_only_the_fleet_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = new_fleet("lab")
    take_invite(invite(folder, "pi"), "pi")
    keys, owner = keys_of("lab", "pi"), keys_of("lab", "owner")
    assert keys is not None
    assert owner is not None
    with serve_metrics(0, keys, lambda: "x 1\n") as address:
        address = address.replace("0.0.0.0", "127.0.0.1")
        context = ssl.create_default_context(cafile=owner.authority)
        context.check_hostname = False
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            read(address, context)  # without a certificate
        context.load_cert_chain(owner.certificate, owner.key)
        assert read(address, context) == "x 1\n"


def test_a_taken_port_is_refused_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=f"--metrics {port}: cannot listen"),
            serve_metrics(port, None, str),
        ):
            pass


def test_every_name_is_documented_and_the_dashboard_asks_for_known_ones() -> None:
    page = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
    known = {**HELP, **prometheus.HELP}
    assert [name for name in known if f"`{name}`" not in page] == []
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text(encoding="utf-8"))
    asked = [panel["targets"][0]["expr"] for panel in dashboard["panels"]]
    assert all(any(name in expression for name in known) for expression in asked)


def test_a_revoked_certificate_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the handshake knows no list, and so a revoked device went on reading."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = new_fleet("lab")
    for name in ("pi", "old"):
        take_invite(invite(folder, name), name)
    keys, old = keys_of("lab", "pi"), keys_of("lab", "old")
    assert keys is not None
    assert old is not None
    with serve_metrics(0, keys, lambda: "x 1\n") as address:
        address = address.replace("0.0.0.0", "127.0.0.1")
        context = ssl.create_default_context(cafile=old.authority)
        context.check_hostname = False
        context.load_cert_chain(old.certificate, old.key)
        assert read(address, context) == "x 1\n"
        revoke(folder, "old")  # while the node serves, perhaps in the middle of a run
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(address, context)
        assert refused.value.code == 403
        assert "was revoked" in refused.value.read().decode()
        refused.value.close()


def test_a_page_with_a_name_of_its_own_reads_nothing() -> None:
    with serve_metrics(0, None, lambda: "x 1\n") as address:
        question = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(question, timeout=20)
        assert refused.value.code == 403
        refused.value.close()
        assert read(address) == "x 1\n"


def test_who_sends_a_byte_now_and_then_keeps_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "WHOLE_S", 0.5)
    with serve_metrics(0, None, lambda: "x 1\n") as address:
        port = int(address.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            for _ in range(12):
                with contextlib.suppress(OSError):
                    slow.send(b"G")
                time.sleep(0.1)
            begin = time.monotonic()
            assert read(address) == "x 1\n"
            assert time.monotonic() - begin < 3.0
