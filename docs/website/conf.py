"""Sphinx reads the pages that pages.py wrote: Markdown throughout. `./develop.sh docs` calls both."""

project = "gdn_cuda"
extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 3
html_title = project
html_theme_options = {"description": "CUDA kernels for the layers that replace attention", "page_width": "1160px"}
html_show_copyright = False
