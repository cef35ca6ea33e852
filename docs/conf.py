"""Sphinx: the pages of `docs/`, and those of the repository that they link to, as they stand.

The source folder is the repository (`make docs` gives it), so that a link in a page leads to the same place on a file
browser and here. Nothing is downloaded: no inventory of another project is read.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = "memjax"
author = copyright = "The memjax authors"  # noqa: A001
version = release = re.findall(r'__version__ = "(.*)"', (HERE.parent / "memjax/__init__.py").read_text())[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "reference"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "CHANGELOG.md",
    "README.md",
    "CONTRIBUTING.md",
    "tests/golden/README.md",
    "tests/fixtures/README.md",
    "tools/results/README.md",
    "tools/results/tables/*.md",
    "tools/verbs.md",
]
exclude_patterns = [".*", "build", "dist", "runs", "memjax", "configs", "colabs", "data"]

# Pages: headings are anchors, as on a file browser.
myst_heading_anchors = 4
myst_enable_extensions = ["linkify"]
myst_linkify_fuzzy_links = False
# Tables of results begin where their page does, at any level; several classes share a short name in an annotation.
suppress_warnings = ["myst.header", "ref.python"]

# Docstrings: Google's sections, Markdown's code, shapes as they are written.
default_role = "code"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_mock_imports = [
    "tensorflow",
    "tensorflow_text",
    "tensorflow_datasets",
    "seqio",
    "scann",
    "faiss",
    "apache_beam",
]
add_module_names = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 100

# Names of other projects are words here: nothing says where their pages are.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!memjax\.).*")]

html_theme = "furo"
html_title = f"memjax {version}"
html_static_path = ["static"]
html_css_files = ["memjax.css"]
html_extra_path = ["front"]
html_copy_source = False
html_show_sphinx = False
