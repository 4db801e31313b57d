"""Writes the CMake project of a kernel of the Hugging Face Hub, as kernel-builder does for a Mac: a stand-in for
`build2cmake generate-torch build.toml`, a Rust program, which a test environment does not have. It renders the same templates,
from a checkout of kernel-builder that the caller has; nothing of them is in this file but the values that they take.

    python kernel_builder.py KERNEL KERNEL_BUILDER

KERNEL is the folder of build.toml, and KERNEL_BUILDER that of the checkout.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import jinja2

try:
    import tomllib  # novermin: Python 3.10 needs the package tomli
except ImportError:
    import tomli as tomllib


def generate(kernel: Path, checkout: Path) -> None:
    templates = checkout / "build2cmake" / "src" / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates), undefined=jinja2.StrictUndefined
    )
    build = tomllib.loads((kernel / "build.toml").read_text())
    torch, name = build["torch"], build["general"]["name"]
    package = name.replace("-", "_")

    def render(template: str, **values: object) -> str:
        return environment.get_template(template).render(**values) + "\n"

    def includes(section: dict) -> str | None:
        found = section.get("include")
        # The form that kernel-builder writes.
        return ";".join(f"${{CMAKE_SOURCE_DIR}}/{folder}" for folder in found) if found else None

    ops = f"_{package}_clients"
    binding = {"name": name, "src": torch["src"], "includes": includes(torch)}
    parts = [
        render("metal/preamble.cmake", name=name, torch_minver=None, torch_maxver=None),
        render("metal/torch-binding.cmake", **binding),
    ]
    for kernel_name, section in build["kernel"].items():
        if section["backend"] != "metal":
            continue
        values = {
            "kernel_name": kernel_name,
            "sources": "\n".join(json.dumps(source) for source in section["src"]),
            "includes": includes(section),
            "cxx_flags": ";".join(section["cxx-flags"]) if "cxx-flags" in section else None,
        }
        parts.append(render("metal/kernel.cmake", **values))
    parts.append(render("metal/torch-extension.cmake", name=name, ops_name=ops))
    (kernel / "CMakeLists.txt").write_text("".join(parts))
    (kernel / "setup.py").write_text(
        render("metal/setup.py", name=name, ops_name=ops, data_globs=None)
    )
    (kernel / "torch-ext" / package / "_ops.py").write_text(render("_ops.py", ops_name=ops))
    shutil.copy(templates / "registration.h", kernel / "torch-ext")
    (kernel / "cmake").mkdir(exist_ok=True)
    shutil.copy(templates / "utils.cmake", kernel / "cmake")
    for file in ("compile-metal.cmake", "metallib_to_header.py"):
        shutil.copy(templates / "metal" / file, kernel / "cmake")


if __name__ == "__main__":
    generate(Path(sys.argv[1]), Path(sys.argv[2]))
