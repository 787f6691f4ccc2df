"""The page in a real browser: a run is started, loses a device and recovers, and all of it appears."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

pytest.importorskip("starlette", reason="the extra [web] is not installed")
pytest.importorskip("uvicorn", reason="the extra [web] is not installed")
pytest.importorskip("websockets", reason="the extra [web] is not installed")

import weft
from tests.web.browser import Page, browser_path, open_page, served, take
from weft.fleet.fleet import Device, Fleet, Link
from weft.planning.decide import decide
from weft.planning.task import make_task
from weft.plans.profile import DeviceTimes, LayerCost, Profile
from weft.runtime.emulate.local import LocalFleet
from weft.runtime.run.records.live import DeviceNow, LiveFile

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(browser_path() is None, reason="this machine has no Chromium"),
]
PAGE_S = float(os.environ.get("WEFT_PAGE_S", "0"))  # how long the large page is followed, at least
ENDLESS = 10_000_000
FLEET = Fleet(
    (Device("pi", "device", gflops=1.0, data=True), Device("nuc", "edge", gflops=4.0),
     Device("cloud", "cloud", gflops=9.0)),
    (Link(("pi", "nuc"), 50.0, 50.0, 2.0), Link(("nuc", "cloud"), 100.0, 100.0, 5.0),
     Link(("pi", "cloud"), 20.0, 40.0, 9.0, 0.01)),
)  # fmt: skip
# Text whose contrast with what lies behind it is below the WCAG's limits.
CONTRAST = """(() => {
  const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (node) => { for (let n = node; n; n = n.parentElement) { const c = getComputedStyle(n).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; } return "rgb(255, 255, 255)"; };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !node.getClientRects().length || ["TITLE", "SCRIPT", "STYLE", "title"].includes(node.tagName)) continue;
    const style = getComputedStyle(node), drawn = node instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(drawn), light(behind(node))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push(`${node.tagName}.${node.getAttribute("class")} "${node.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""  # noqa: E501
# Controls and pictures without a name.
NAMELESS = """[...document.querySelectorAll("input,button,select,svg[role=img],img,progress")].filter((n) =>
  !n.getAttribute("aria-label") && !n.labels?.length && !n.textContent.trim() && n.getAttribute("alt") === null).map((n) => n.outerHTML.slice(0, 80))"""  # noqa: E501
# Boxes of devices that lie on each other.
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("[data-card=fleet] g[data-device] rect")].map((n) => n.getBoundingClientRect());
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).length;
})()"""  # noqa: E501
# Large pictures and tables that an update must not make anew.
KEPT = """[...document.querySelectorAll(
  "[data-card=fleet] svg g, [data-card=plan] svg, [data-card=devices] td")]"""
WIDER = "document.documentElement.scrollWidth > innerWidth"


def every(card: str, selector: str) -> str:
    """JavaScript for all such elements of a card."""
    return f"document.querySelectorAll('[data-card={card}] {selector}')"


class Training(threading.Thread):
    """A run on three nodes that goes on until it is told to stop."""

    def __init__(self, local: LocalFleet, out: Path) -> None:
        super().__init__(daemon=True)
        self.local, self.out, self.enough = local, out, threading.Event()
        self.result: Any = None

    def run(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 48),
            nn.ReLU(),
            nn.Linear(48, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
        enough = self.enough

        class Until(weft.Callback):
            def on_step(self, done: Any) -> bool:
                return enough.is_set()

        self.result = weft.train(
            net, "digits", nn.CrossEntropyLoss(), fleet=FLEET, strategy="chain", batch=32,
            steps=ENDLESS, options={"devices": "pi,nuc,cloud"}, join=self.local.endpoint,
            group=self.local.group, out=self.out, callbacks=[Until()], evaluate_every=200,
            lr=0.05,
        )  # fmt: skip


def test_a_run_its_loss_of_a_device_and_its_recovery_appear(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the extra [data] is not installed")
    runs = tmp_path / "runs"
    runs.mkdir()
    with (
        served(runs) as url,
        open_page(tmp_path) as page,
        LocalFleet(("pi", "nuc", "cloud")) as local,
    ):
        page.open(f"{url}?theme=light")
        page.until(
            "document.getElementById('connection').textContent.includes('● connected')",
            "connection",
        )
        local.crew.wait_for(local.names, 180.0)
        training = Training(local, runs / "first")
        training.start()
        page.until(
            "document.querySelectorAll('[data-card=fleet] [data-state=works]').length === 3",
            "devices",
        )
        page.until(
            "document.querySelector('[data-curve=\"training loss\"]')?.points.length > 5", "a curve"
        )
        page.until(
            "document.querySelectorAll('[data-card=time] .measured').length > 3", "measured bars"
        )
        local.kill("nuc")
        page.until("document.querySelector('[data-card=events] [data-kind=recovered]')", "recovery")
        page.until(
            "document.querySelector('[data-card=fleet] [data-device=nuc]').dataset.state === 'lost'",
            "lost",
        )
        newest = "Number(document.querySelector('[data-card=run] progress').value)"
        before = page.run(newest)
        page.until(f"{newest} > {before}", "more minibatches")
        training.enough.set()
        training.join(180)
        assert training.result is not None
        page.until(
            "document.querySelector('[data-card=run] .state').textContent.includes('ended')",
            "the end",
        )
        failed = page.run(f"{every('events', '[data-kind=advice_failed]')}.length")
        assert failed == 0  # looks after the loss plan for those who are left
        moving = "[...document.querySelectorAll('svg .used')].map((n) => getComputedStyle(n).animationName)"
        assert set(page.run(moving)) <= {"none"}  # nothing is under way any more
        check_page(page, url)
        take(page, "web-loss")


def check_page(page: Page, url: str) -> None:
    """No error, no other host, readable in both colours and on a phone, all with names."""
    for theme in ("light", "dark"):
        page.run(f"document.documentElement.dataset.theme = '{theme}'")
        assert page.run(CONTRAST) == []
    page.run("document.documentElement.dataset.theme = 'light'")
    assert page.run(NAMELESS) == []
    page.size(390, 844)
    page.until(f"!({WIDER})", "a phone's width")
    page.until(f"{OVERLAPS} === 0", "devices beside each other", 20)
    page.size(1280, 900)
    host = url.split("/")[2]
    assert {address.split("/")[2] for address in page.requests} == {host}
    assert page.errors == []


def test_the_page_plans_again_and_comes_back_after_the_server_did(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    works = dict.fromkeys(("pi", "nuc", "cloud"), DeviceNow("works", 5))
    runs = make_folder("runs/first", devices=works).parent
    with open_page(tmp_path) as page:
        with served(runs) as url:
            page.open(f"{url}?theme=dark")
            page.until("document.querySelector('[data-group=rates]')", "sliders")
            # The first slider is that of all links together.
            every = page.run("document.querySelector('[data-group=rates]').ariaLabel")
            assert every == "bandwidth of all links"
            move = "i.value = -40; i.dispatchEvent(new Event('input'))"
            page.run(
                f"(() => {{ const i = document.querySelector('[data-group=rates]'); {move} }})()"
            )
            page.until(
                "document.querySelectorAll('.answer .bars strong').length === 3", "an answer"
            )
            assert page.run("document.querySelectorAll('.answer .block').length") > 0
            seconds = page.run(
                "[...document.querySelectorAll('.answer .bars strong')].map((n) => n.textContent)"
            )
            assert (
                seconds[0] != seconds[1]
            )  # today's price, and that of the same plan on slow links
            make_folder("runs/second", "ended")
            page.until("document.querySelectorAll('#choice input').length === 2", "the second run")
            page.run("document.querySelectorAll('#choice input')[0].click()")
            page.run(
                "document.querySelectorAll('#choice input:not(:checked)').forEach((i) => i.click())"
            )
            page.until("document.querySelectorAll('#together .curve').length >= 2", "side by side")
            check_page(page, url)
        page.until(
            "document.getElementById('connection').textContent.includes('not connected')", "an end"
        )
        page.errors.clear()  # the browser says that the server is gone
        with served(runs, int(url.split(":")[2].strip("/"))):
            page.until(
                "document.getElementById('connection').textContent.includes('● connected')", "again"
            )


def test_a_hundred_devices_and_ten_thousand_minibatches(tmp_path: Path) -> None:
    """The page follows, and its memory stays flat."""
    path = tmp_path / "runs" / "large"
    path.mkdir(parents=True)
    names = [f"d{n}" for n in range(100)]
    tiers = ("device", "edge", "cloud")
    fleet = Fleet(
        tuple(Device(name, tiers[min(n // 40, 2)], data=n == 0) for n, name in enumerate(names)),
        tuple(Link((names[n - 1], names[n]), 50.0, 50.0) for n in range(1, 100)),
    )
    layers = tuple(LayerCost(f"fc{i}", 4000, 400) for i in range(8))
    times = DeviceTimes((1e-4,) * 8, (2e-4,) * 8, (1e-5,) * 8)
    profile = Profile("large", 400, layers, dict.fromkeys(names, times))
    plan = decide("chain", make_task(profile, fleet, batch=16, options={"devices": "d0,d1,d2"}))
    plan.save(path / "plan.json")
    metrics = path / "metrics.jsonl"
    metrics.write_text("".join(f'{{"step":{n},"loss":{1 + n % 7}}}\n' for n in range(10_000)))

    def report(at_s: float, lost: str = "") -> None:
        devices = {
            n: DeviceNow("lost" if n == lost else "works", int(at_s), at_s, 0.5) for n in names
        }
        live = LiveFile("runs", 20_000, fleet, devices, at_s, "chain")
        (path / "live.json").write_bytes(msgspec.json.encode(live))

    report(0.0)
    with served(path.parent) as url, open_page(tmp_path) as page:
        page.open(url)
        page.until(
            "document.querySelectorAll('[data-card=devices] tbody tr').length === 100", "devices"
        )
        delays, heaps = [], []
        opened = time.monotonic()
        for n in itertools.count():
            begin = time.monotonic()
            if n >= 40 and n % 10 == 0 and begin > opened + PAGE_S:
                break
            with metrics.open("a") as file:
                file.write(f'{{"step":{10_000 + n},"loss":1.5}}\n')
            report(n + 1.0)
            page.until(
                f"document.querySelector('progress')?.value === {10_001 + n}", "the new minibatch"
            )
            delays.append(time.monotonic() - begin)
            if n == 4:  # the width has settled
                page.run(f"{KEPT}.forEach((node) => {{ node.kept = true; }})")
            if n % 10 == 9:
                page.call("HeapProfiler.collectGarbage")
                heaps.append(page.call("Runtime.getHeapUsage")["usedSize"] / 1e6)
        print(
            f"{len(delays)} updates: median {statistics.median(delays):.2f} s, largest {max(delays):.2f} s;"
            f" heap {heaps[0]:.1f} MB at first, {heaps[-1]:.1f} MB at last, {max(heaps):.1f} MB at most"
        )
        assert heaps[-1] < heaps[0] + 5.0
        # What did not change was not drawn again, and what changed is there.
        assert page.run(f"{KEPT}.every((node) => node.kept)")
        shown = (
            "document.querySelector('[data-card=devices] [data-device=d7]').children[4].textContent"
        )
        assert page.run(shown) == str(len(delays) + 1)
        report(float(len(delays)), lost="d7")
        page.until(
            "document.querySelector('[data-card=fleet] [data-device=d7]').dataset.state === 'lost'",
            "the loss",
        )
        assert page.errors == []
