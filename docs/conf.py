"""The site: `pip install ".[docs]"`, then `python -m sphinx -W docs build/site`.

It describes the metalops that is installed: tables and lists are what its commands print, the reference is its docstrings. Two
directives bring them into a page, `command` and `operators`.
"""

import contextlib
import importlib
import inspect
import io

import metalops
from docutils import nodes
from docutils.parsers.rst import directives
from metalops.__main__ import main
from pygments.lexers.c_cpp import CppLexer
from sphinx.util.docutils import SphinxDirective

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


class Command(SphinxDirective):
    """What `python -m metalops ARGUMENTS` prints: Markdown, or with :literal: a text."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"literal": directives.flag}

    def run(self):
        printed = io.StringIO()
        status = 0
        with contextlib.redirect_stdout(printed):
            try:
                status = main(self.arguments[0].split())
            except SystemExit as stopped:  # argparse, after --help
                status = stopped.code
        if status:
            raise self.error(f"python -m metalops {self.arguments[0]} ended with status {status}")
        if "literal" in self.options:
            return [nodes.literal_block(text=printed.getvalue().strip(), language="text")]
        return self.parse_text_to_nodes(printed.getvalue())


class Operators(SphinxDirective):
    """A module of metalops.ops and the functions that it adds to metalops.ops, but for their in-place forms."""

    required_arguments = 1

    def run(self):
        module = importlib.import_module(f"metalops.ops.{self.arguments[0]}")
        names = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
            and name in metalops.ops.__all__
            and not name.endswith("_")
        ]
        entries = [f".. autofunction:: metalops.ops.{name}" for name in names]
        text = "\n\n".join([inspect.getdoc(module), *entries])
        return self.parse_text_to_nodes(f"````{{eval-rst}}\n{text}\n````")


def setup(app):
    app.add_directive("command", Command)
    app.add_directive("operators", Operators)
    app.add_lexer("metal", CppLexer)
