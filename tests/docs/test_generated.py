"""Pages read in the repository as well: they have content there, and what they say of the package is current."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from metalops._cli.coverage import STATUSES
from metalops._torch import versions

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _linked(page: Path) -> list[Path]:
    links = re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in links]


def _without_directives(text: str) -> str:
    """A page as a reader of the repository sees it, without its headings."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(`{3,})\{.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def _empty_sections(text: str) -> list[str]:
    """The headings of the parts of which nothing can be read there."""
    parts = re.split(
        r"^(#+ .*)$", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL), flags=re.MULTILINE
    )
    return [
        heading
        for heading, below, following in zip(
            parts[1::2], parts[2::2], [*parts[3::2], ""], strict=True
        )
        # A heading may have others of its own below it.
        if not _without_directives(below).strip()
        and len(following.split(" ")[0]) <= len(heading.split(" ")[0])
    ]


def test_every_page_that_the_readme_links_to_can_be_read_in_the_repository():
    pages = _linked(ROOT / "README.md")
    assert len(set(pages)) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert len(_without_directives(text).split()) > 60, page
        inside = _empty_sections(text)
        assert not inside, (page, inside)


def test_pages_of_directives_are_found():
    page = "# Title\n\n```{command} info\n:literal:\n```\n\n## Part\n\n### Smaller\n\ntext\n"
    assert _without_directives(page).split() == ["text"]
    assert _empty_sections(page.replace("### Smaller\n\ntext\n", "")) == ["## Part"]


def test_what_pages_say_of_the_package_is_current(generate):
    pages = generate.pages()
    assert {"coverage.md", "command_line.md", "settings.md", "operators.md"} <= {
        page.name for page in pages
    }
    for page in pages:
        if page.name == "coverage.md" and not versions.is_documented(torch.__version__):
            continue  # its lists are those of another torch
        text = page.read_text(encoding="utf-8")
        # Versions of Python break the lines of --help differently.
        assert generate.current(text).split() == text.split(), (
            f"{page.name} is not current: python docs/generate.py"
        )


def test_the_column_of_the_installed_torch_is_current(generate):
    text = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    columns = generate.columns(text)
    assert len(columns.splitlines()) > len(STATUSES)
    assert columns in text, "coverage.md is not current: python docs/generate.py"
    assert "|  |" not in columns, (
        "a supported version has no column: python docs/generate.py with it"
    )


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/start.md"])
def test_pages_name_the_supported_versions_of_torch(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    lists = re.findall(r"torch (\d+\.\d+(?:, \d+\.\d+)* and \d+\.\d+)\b", text)
    assert lists == [versions.listed()]


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_pages_name_the_torch_that_linux_gets_by_default(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f" {versions.DEFAULT} on Linux and the newest" in " ".join(text.split())


def test_one_version_of_each_compiler_is_asked_for_everywhere():
    from metalops.msl.source.compiler import NEEDED

    first = dict(re.findall(r"(g\+\+|clang\+\+) (\d+)", NEEDED))
    assert set(first) == {"g++", "clang++"}
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    sources = [ROOT / "python/metalops/build/compilers.py", ROOT / "setup.py"]
    found = 0
    for path in [*pages, *sources]:
        text = path.read_text(encoding="utf-8")
        for name, version in re.findall(r"(g\+\+|clang\+\+)`? \(?(\d+)", text):
            assert version == first[name], (path, name, version)
            found += 1
    assert found >= 2
