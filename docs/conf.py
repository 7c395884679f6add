"""How Sphinx makes the site: python docs/make_site.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import netfleet

sys.path.insert(0, str(Path(__file__).parent))  # docs/extensions
os.environ["COLUMNS"] = "100"  # the width of what argparse prints

project = "netfleet"
author = copyright = "The netfleet developers"
version = release = netfleet.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "extensions.generated",
    "extensions.made_by",
    "extensions.markdown_docstrings",
    "extensions.mathml",
    "extensions.repository_links",
]
exclude_patterns = ["extensions", "_static"]
source_suffix = {".md": "myst-nb"}
root_doc = "index"

# Pages are Markdown that GitHub shows too.
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
myst_update_mathjax = False
highlight_language = "none"
smartquotes = False  # it would make one dash of the two of an option
html_math_renderer = "mathml"

# Whatever a page refers to must exist. Names of other libraries in signatures are no links: those need the network.
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

# Notebooks are text; what they show is made here, and kept in the cache that make_site.py names.
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # otherwise from another server

html_theme = "furo"
html_title = f"netfleet {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
