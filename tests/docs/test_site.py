"""The site is built without warnings, and its links lead somewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import metalops
import pytest
import torch
from metalops._torch import versions

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "myst_parser", "pydata_sphinx_theme"))),
    reason="the site is built by Sphinx: pip install 'metalops[docs]'",
)


@pytest.fixture(scope="module")
def site(once, shared_folder):
    """The folder of the site, built by what CONTRIBUTING.md says: python -m sphinx -W docs build/site"""
    folder = shared_folder / "site"

    def build():
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(folder)]
        path = os.pathsep.join(p for p in sys.path if p)
        result = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        return result.returncode, result.stdout + result.stderr

    status, printed = once("site", build)
    assert status == 0, printed
    return folder


class Page(HTMLParser):
    """Where a page links to, and what can be linked to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        about = dict(attributes)
        self.anchors.add(about.get("id"))
        if tag in ("a", "link", "img", "script"):
            self.links.add(about.get("href") or about.get("src") or "")


@pytest.mark.nightly
def test_every_link_leads_somewhere(site):
    # Below _static the theme keeps templates.
    files = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    pages = {path: Page(path) for path in files}
    assert len(pages) > 20
    broken, inside = [], 0
    for path, page in pages.items():
        for link in filter(None, page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme == "https" and re.fullmatch(r"[\w.-]+", parts.netloc), link
                continue
            inside += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else ()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    assert inside > 1000


def test_no_page_asks_another_host_for_anything(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(
            r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(?:https?:)?//", text
        )


@pytest.mark.skipif(
    not versions.is_documented(torch.__version__), reason="pages are about another torch"
)
def test_the_coverage_table_is_the_one_of_now(site):
    shown = (site / "coverage.html").read_text(encoding="utf-8")
    ours = sum(entry.status == "ours" for entry in metalops.coverage())
    assert re.search(rf"<p>ours</p></td>\s*<td><p>{ours}</p></td>", shown)


def test_every_function_of_the_package_is_in_the_reference(site):
    shown = "".join(path.read_text(encoding="utf-8") for path in site.glob("api/*.html"))
    names = [name for name in metalops.ops.__all__ if not name.endswith("_")]
    for name in [*names, *metalops._FROM_MODULES, "standins", "flash_attn_func", "QuantizedLinear"]:
        assert re.search(rf'id="metalops[\w.]*\.{name}"', shown), name


def test_every_command_is_on_its_page(site):
    from metalops.__main__ import COMMANDS

    shown = Page(site / "command_line.html").anchors
    assert set(COMMANDS) <= shown
