"""The fenced blocks of the README and the pages of docs/, for tests that run them."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.project import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its page as a path in the project, its first line there, its language."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(*pages: Path) -> list[Block]:
    """The blocks of some pages, or of all, in their order."""
    return [
        Block(
            page=page.relative_to(ROOT).as_posix(),
            line=text.count("\n", 0, found.start()) + 2,
            language=found[1],
            text=found[2],
        )
        for page in pages or PAGES
        for text in [page.read_text()]
        for found in _FENCE.finditer(text)
    ]
