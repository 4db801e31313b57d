"""Kernels on the keys of mps take sizes as their schemas state them, also when the dispatcher calls them boxed."""

import re

import pytest
import torch


def _signatures(name: str) -> dict[str, str]:
    """The C++ signature of each key's kernel that has one."""
    lines = torch._C._dispatch_dump(name).splitlines()
    found = (re.match(r"(\w+): .*? :: (\(.*)", line) for line in lines)
    return {match[1]: match[2] for match in found if match and "(none)" not in match[2]}


def test_lists_of_symbolic_sizes_are_not_taken_as_lists_of_numbers():
    """In a boxed call, such as those of torch's stable ABI, they are another kind of list."""
    schemas = [x for x in torch._C._jit_get_all_schemas() if "SymInt[" in str(x)]
    wrong = {}
    for schema in schemas:
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        if not schema.name.startswith(("aten::", "metalops::")):
            continue
        lists = len(re.findall(r"SymInt\[\d*\]\??", str(schema).split("->")[0]))
        for key, signature in _signatures(name).items():
            if "MPS" in key and len(re.findall(r"SymInt\[\]\??", signature)) < lists:
                wrong[name, key] = signature
    assert not wrong
    assert len(schemas) > 200


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.view(2, 3),
        lambda x: x.as_strided((2, 2), (3, 1), 1),
        lambda x: x.clone().resize_(2, 2),
        lambda x: torch.empty_strided((2, 3), (1, 2), device=x.device).zero_(),
        lambda x: torch.nn.functional.conv1d(x.view(1, 1, 6), torch.ones_like(x[:2]).view(1, 1, 2)),
    ],
)
def test_views_and_sizes_in_inference_mode(call):
    x = torch.arange(6.0)
    with torch.inference_mode():
        assert torch.equal(call(x.to("mps")).cpu(), call(x))
