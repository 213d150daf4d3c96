"""Sphinx reads the pages that pages.py wrote: Markdown throughout. `./develop.sh docs` calls both. Everything that a page loads
is in the folder that is built: no fonts, scripts or styles from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "gdn_cuda"
release = re.search(r'__version__ = "(.*)"', (ROOT / "gdn_cuda/__init__.py").read_text())[1]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 3

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = project
html_short_title = project
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_extra_path = [str(ROOT / "build/docs/plain")]  # each page as Markdown, and llms.txt
html_theme_options = {
    "top_of_page_buttons": ["view"],
    "light_css_variables": {
        "color-brand-primary": "#3f6b00",
        "color-brand-content": "#3f6b00",
        "color-brand-visited": "#3f6b00",
    },
    "dark_css_variables": {
        "color-brand-primary": "#a6d854",
        "color-brand-content": "#a6d854",
        "color-brand-visited": "#a6d854",
    },
}

# The button copies what is typed: neither prompts nor what Python answers.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
