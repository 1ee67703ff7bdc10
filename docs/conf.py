# SPDX-License-Identifier: Apache-2.0
"""Sphinx: Markdown pages only, no code is imported."""

project = "gs-train"
author = "the gs-train developers"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "gs-train"
