"""The commands that README and docs show, each with what its comment promises."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Shown", "shown_commands"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HOST = re.compile(r"^\$ source /opt/aws", re.MULTILINE)
_EXIT = re.compile(r"\bexit (\d+)")
# Pages whose commands need a Trainium host: theirs are parsed, not run, up to what any CPU can.
_HOST_PAGES = ("trainium.md",)
_ANY_HOST = "## Without a device"


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of one page.

    Attributes:
        place: "docs/commands.md:12".
        words: without the prompt and the comment.
        exit_code: what the comment says ("exit 3"), else 0.
        speed: "fast"; "slow" where the comment speaks of minutes; "host" where it cannot run here
            (a Trainium host, a server in another shell, a name to fill in): parsed only.
    """

    place: str
    words: tuple[str, ...]
    exit_code: int
    speed: str

    @property
    def program(self) -> str:
        return self.words[0]


def shown_commands() -> list[Shown]:
    """Every `$ ...` line of every console block, `a && b` as two."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [one for page in pages for one in _of_page(page)]


def _of_page(page: Path) -> list[Shown]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        needs_device = page.name in _HOST_PAGES and _ANY_HOST not in text[: fence.start()]
        on_host = needs_device or bool(_HOST.search(fence[1]))
        first = text[: fence.start(1)].count("\n") + 1
        # A command goes on in the next line after a backslash.
        body = fence[1].replace("\\\n", "  ")
        for number, line in enumerate(body.splitlines(), start=first):
            if line.startswith("$ "):
                place = f"{page.relative_to(ROOT)}:{number}"
                found += _of_line(line[2:], place, on_host=on_host)
    return found


def _of_line(line: str, place: str, *, on_host: bool) -> list[Shown]:
    command, _, comment = line.partition("  #")
    promised = _EXIT.search(comment)
    speed = "fast"
    if "minutes" in comment:
        speed = "slow"
    if on_host or "Ctrl-C" in comment:
        speed = "host"
    exit_code = int(promised[1]) if promised else 0
    found = []
    for part in command.split("&&"):
        words = tuple(shlex.split(part))
        found.append(Shown(place, words, exit_code, _speed(words, speed)))
    return found


def _speed(words: tuple[str, ...], promised: str) -> str:
    """What a command needs beyond its comment: another process, a name to fill in, a server."""
    if {"serve", "--attach"} & set(words) or any("<" in word for word in words):
        return "host"
    if promised == "fast" and {"--online", "evaluate"} & set(words):
        return "slow"
    return promised
