"""Looks at the website that Sphinx built: `python docs/website/built.py FOLDER`. Exits with 1 where a link leads nowhere, in
HTML or in the Markdown beside it, or where a page loads something from elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from links import LINK

_IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\s\"')]+")


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []  # scripts, styles, pictures
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


class Website:
    def __init__(self, folder: Path):
        self.folder = folder
        self.pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
        self.links = 0

    def faults(self) -> Iterator[str]:
        for path, page in self.pages.items():
            for target in page.loaded:
                if urlsplit(target).netloc:
                    yield f"{self._name(path)}: loads {target}, which is not in this folder"
            for target in page.links + page.loaded:
                yield from self._lost(path, target)
        for path in sorted(self.folder.rglob("*.md")):
            for target, _ in LINK.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
                yield from self._lost(path, target)
        for path in sorted(self.folder.rglob("*.css")):
            for found in _IN_STYLES.findall(path.read_text()):
                yield f"{self._name(path)}: loads {found}, which is not in this folder"

    def _lost(self, page: Path, target: str) -> Iterator[str]:
        link = urlsplit(target)
        if link.scheme or link.netloc:
            return
        self.links += 1
        path = (page.parent / unquote(link.path)).resolve() if link.path else page
        if not path.is_file():
            yield f"{self._name(page)}: links to {target}, and there is no such file"
        elif path in self.pages and unquote(link.fragment) not in self.pages[path].anchors:
            yield f"{self._name(page)}: links to {target}, and that page has no such anchor"

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def main() -> int:
    website = Website(Path(sys.argv[1]).resolve())
    if faults := list(website.faults()):
        print("docs: " + "\ndocs: ".join(faults), file=sys.stderr)
        return 1
    print(f"{len(website.pages)} pages, {website.links} links, none broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
