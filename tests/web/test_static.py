"""The page's own files, without a browser: no other host, and colours that can be read in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft.web

STATIC = Path(weft.web.__file__).parent / "static"
STYLE = (STATIC / "style.css").read_text(encoding="utf-8")
THEMES = {
    "dark" if "dark" in name else "light": dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for name, block in re.findall(r"(:root[^{]*)\{([^}]*)\}", STYLE)
}
TEXT = ("ink", "quiet", "accent", "good", "warn", "bad")
GROUNDS = ("card", "ground", "faint")
DRAWN = ("device", "edge", "cloud", "load", "forward", "loss", "backward", "update", "transfer")


def test_no_file_of_the_page_names_another_host() -> None:
    hosts = [
        (path.name, host)
        for path in STATIC.iterdir()
        for host in re.findall(r"(?:https?:|wss?:)?//([\w-]+\.[\w.-]+)", path.read_text("utf-8"))
    ]
    assert {host for _, host in hosts} <= {"www.w3.org"}  # the name of SVG, which nobody asks


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_told_from_what_lies_behind_them(theme: str) -> None:
    """The limits of the WCAG: 4.5 for text, 3 for what is drawn."""
    colour = THEMES[theme]
    pairs = [(name, ground, 4.5) for name in TEXT for ground in GROUNDS]
    pairs += [(name, "card", 3.0) for name in DRAWN]
    weak = {
        (name, ground): round(contrast(colour[name], colour[ground]), 2)
        for name, ground, least in pairs
        if contrast(colour[name], colour[ground]) < least
    }
    assert weak == {}


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
