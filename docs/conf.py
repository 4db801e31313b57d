"""The site: `pip install ".[docs]"`, then `python -m sphinx -W docs build/site`.

It describes the metalops that is installed: the reference is its docstrings, which the directive `operators` brings into a page.
What commands print stands in the pages themselves: see generate.py.
"""

import importlib
import inspect
import os
import sys

import metalops
from pygments.lexers.c_cpp import CppLexer
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, os.path.dirname(__file__))
from generate import functions  # noqa: E402

project = "metalops"
author = "the authors of metalops"
release = version = metalops.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
add_module_names = False
# Pages of PyTorch's own projects have this theme below pytorch-sphinx-theme2, which adds their header, footer and trackers.
html_theme = "pydata_sphinx_theme"
html_title = project
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "show_toc_level": 2,
}
# Pages that have no others beside them.
alone = ("index", "start", "coverage", "benchmarks", "inside", "contributing", "changelog")
html_sidebars = {page: [] for page in alone}
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_show_copyright = False
pygments_style = "sphinx"


class Operators(SphinxDirective):
    """A module of metalops.ops and the functions that it adds to metalops.ops, but for their in-place forms."""

    required_arguments = 1

    def run(self):
        module = importlib.import_module(f"metalops.ops.{self.arguments[0]}")
        entries = [
            f".. autofunction:: metalops.ops.{name}" for name in functions(self.arguments[0])
        ]
        text = "\n\n".join([inspect.getdoc(module), *entries])
        return self.parse_text_to_nodes(f"````{{eval-rst}}\n{text}\n````")


def setup(app):
    app.add_directive("operators", Operators)
    app.add_lexer("metal", CppLexer)
