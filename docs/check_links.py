"""Checks that every relative link of the project's Markdown files leads to a file (and a heading).

python docs/check_links.py          exit code 1 and one line per dead link
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)  # https:, mailto:


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        word = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = sum(
            1 for name in found if name == word or re.fullmatch(re.escape(word) + r"-\d+", name)
        )
        found.add(f"{word}-{count}" if count else word)
    return found


def dead_links(page: Path) -> Iterator[str]:
    """One message for each link of a page that leads nowhere."""
    text = page.read_text(encoding="utf-8")
    for match in LINK.finditer(CODE.sub("", FENCE.sub("", text))):
        link = match.group(1)
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
            yield f"{page.relative_to(ROOT)}: {link}: no such heading"


def main() -> int:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    dead = [message for page in sorted(pages) for message in dead_links(page)]
    print("\n".join(dead) or f"{len(pages)} pages, every relative link resolves")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
