"""Launches every case of the gallery and its twin under the sanitizer of METALOPS_SANITIZE, if any, and
prints what was found, a JSON object a line: {"case": name, "wrong": [[kind, message, warning]...],
"twin": [...]}. The arguments: the sanitizer, and the names of cases when not all shall run.
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import metalops
import torch
from metalops import _host, msl
from metalops.debug import SanitizerError, SanitizerWarning

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gallery  # noqa: E402


def floats(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="mps")


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32, device="mps")


def bytes_of(count: int, value: int) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.uint8, device="mps")


def launch(source: str, expression: str, language: str = "") -> None:
    """kernel(...): the source's only kernel. raw(...): the same by metalops' own launch, which takes
    {index: bytes} of threadgroup memory and buffers that are bytes or None.
    """
    if language:
        library = metalops.compile_shader(source, language=language)
    else:
        library = torch.mps.compile_shader(source)
    (name,) = dir(library)

    def raw(buffers, grid, group, threadgroup_bytes=None):
        compiled = _host.Library(msl.compile_source(source))
        compiled.launch(name, buffers, grid, group, threadgroup_bytes or {})

    scope = {"kernel": getattr(library, name), "raw": raw, "floats": floats, "ints": ints}
    eval(expression, {**scope, "bytes_of": bytes_of, "torch": torch, "metalops": metalops})


def findings(source: str, expression: str, language: str = "") -> list[tuple[str, str, bool]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SanitizerWarning)
        try:
            launch(source, expression, language)
            found = []
        except SanitizerError as error:
            found = [(f.kind, f.message, f.warning) for f in error.findings]
        except RuntimeError as error:
            found = [("error", str(error), False)]
    warned = [w for w in caught if issubclass(w.category, SanitizerWarning)]
    return found + [("", str(w.message), True) for w in warned]


def main() -> None:
    for case in gallery.cases(sys.argv[1]):
        if sys.argv[2:] and case.name not in sys.argv[2:]:
            continue
        os.environ["METALOPS_COOPERATIVE_LAYOUT"] = case.layout or "apple10"
        result = {
            "case": case.name,
            "wrong": findings(case.source, case.launch, case.language),
            "twin": findings(case.twin, case.launch, case.language),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
