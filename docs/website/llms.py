"""The site as plain Markdown, for readers that are programs: each page beside its HTML, llms.txt, which lists them with a line
about each, and llms-full.txt, which has them all."""

from __future__ import annotations

import re

_TREE = re.compile(r"^```\{toctree\}\n.*?^```\n*", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->\n*", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r".+?\.(?=\s|$)")


def title_of(page: str) -> str:
    return page.split("\n", 1)[0].lstrip("# ").replace("`", "")


def about(page: str) -> str:
    """The first sentence of a page, without its links."""
    for paragraph in plain_text(page).split("\n\n")[1:]:
        if re.match(r"[^\W_]|`\w", paragraph) and not paragraph.startswith("```"):
            return first_sentence(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)).rstrip(":")
    return ""


def first_sentence(text: str) -> str:
    text = " ".join(text.split("\n\n")[0].split())
    sentence = _SENTENCE.match(text)
    return sentence[0] if sentence else text


def plain_text(page: str) -> str:
    """Without what only Sphinx reads."""
    for pattern in (_TREE, _COMMENT):
        page = pattern.sub("", page)
    return page.rstrip() + "\n"


def plain(pages: dict[str, str], sections: dict[str, list[str]]) -> dict[str, str]:
    """Files by name."""
    texts = {page: plain_text(text) for page, text in pages.items()}
    lines = [
        f"# {title_of(texts['index.md'])}",
        "",
        f"> {about(texts['index.md'])}",
        "",
        f"- [Start](index.md): {about(texts['index.md'])}",
    ]
    listed = ["index.md"]
    for section, entries in sections.items():
        lines += ["", f"## {section}", ""]
        for page in (each for entry in entries for each in _with_children(entry, pages)):
            lines.append(f"- [{title_of(texts[page])}]({page}): {about(texts[page])}".rstrip(": "))
            listed.append(page)
    full = "\n\n".join(f"<!-- {page} -->\n\n{texts[page]}" for page in listed)
    return texts | {"llms.txt": "\n".join(lines) + "\n", "llms-full.txt": full}


def _with_children(entry: str, pages: dict[str, str]) -> list[str]:
    """A page, those of its own table of contents, and theirs."""
    page, folder = f"{entry}.md", entry.rpartition("/")[0]
    found = [page]
    for tree in _TREE.findall(pages[page]):
        names = [line for line in tree.splitlines()[1:-1] if line and not line.startswith(":")]
        found += [each for name in names for each in _with_children(f"{folder}/{name}", pages)]
    return found
