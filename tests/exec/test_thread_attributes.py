"""What each [[attribute]] of a kernel argument holds, for every thread, on both engines and at partial threadgroups."""

import math

import pytest
import torch

from .conftest import build, engines_of

# attribute -> (Metal type, components)
ATTRIBUTES = {
    "thread_position_in_grid": 3,
    "thread_position_in_threadgroup": 3,
    "threadgroup_position_in_grid": 3,
    "threads_per_grid": 3,
    "threads_per_threadgroup": 3,
    "dispatch_threads_per_threadgroup": 3,
    "threadgroups_per_grid": 3,
    "grid_origin": 3,
    "thread_index_in_threadgroup": 1,
    "thread_index_in_simdgroup": 1,
    "simdgroup_index_in_threadgroup": 1,
    "simdgroups_per_threadgroup": 1,
    "dispatch_simdgroups_per_threadgroup": 1,
    "threads_per_simdgroup": 1,
    "thread_execution_width": 1,
    "thread_index_in_quadgroup": 1,
    "quadgroup_index_in_threadgroup": 1,
    "quadgroups_per_threadgroup": 1,
    "dispatch_quadgroups_per_threadgroup": 1,
}


def kernel(attribute, components):
    metal_type = f"uint{components}" if components > 1 else "uint"
    store = (
        "out[i * 3] = v.x; out[i * 3 + 1] = v.y; out[i * 3 + 2] = v.z;"
        if components > 1
        else "out[i * 3] = v;"
    )
    if attribute == "thread_position_in_grid":
        parameters = f"uint3 v [[{attribute}]]"
        place = "v"
    else:
        parameters = f"{metal_type} v [[{attribute}]], uint3 g [[thread_position_in_grid]]"
        place = "g"
    return f"""
    kernel void read_{attribute}(device uint* out [[buffer(0)]], constant uint3& n [[buffer(1)]], {parameters}) {{
      uint i = ({place}.z * n.y + {place}.y) * n.x + {place}.x;
      {store}
    }}"""


# What any function can ask, by functions of Apple's compiler.
NUMBERS = [
    "thread_index_in_simdgroup",
    "thread_index_in_quadgroup",
    "thread_index_in_threadgroup",
    "simdgroup_index_in_threadgroup",
    "quadgroup_index_in_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
]


def number(name):
    """A kernel that asks in a function that it calls, for some threads alone."""
    return f"""
    struct of_{name} {{ template <class T> static T ask() {{ return __metal_get_{name}(T()); }} }};
    kernel void ask_{name}(device uint* out [[buffer(0)]], constant uint3& n [[buffer(1)]],
                           uint3 g [[thread_position_in_grid]]) {{
      uint i = (g.z * n.y + g.y) * n.x + g.x;
      if (i % 3 == 1) {{
        out[i * 3] = of_{name}::ask<uint>();
      }} else {{
        const ushort asked = of_{name}::ask<ushort>();
        out[i * 3] = asked;
      }}
    }}"""


SOURCE = "".join(kernel(a, c) for a, c in ATTRIBUTES.items()) + "".join(map(number, NUMBERS))


def expected(attribute, grid, group):
    """A tensor of the attribute's components for each thread, in the order of the flattened grid."""
    rows = []
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                position = (x, y, z)
                in_group = tuple(p % g for p, g in zip(position, group))
                group_position = tuple(p // g for p, g in zip(position, group))
                size = tuple(min(g, n - p * g) for g, n, p in zip(group, grid, group_position))
                groups = tuple(math.ceil(n / g) for n, g in zip(grid, group))
                index = (in_group[2] * size[1] + in_group[1]) * size[0] + in_group[0]
                threads = math.prod(size)
                full = math.prod(group)
                rows.append(
                    {
                        "thread_position_in_grid": position,
                        "thread_position_in_threadgroup": in_group,
                        "threadgroup_position_in_grid": group_position,
                        "threads_per_grid": grid,
                        "threads_per_threadgroup": size,
                        "dispatch_threads_per_threadgroup": group,
                        "threadgroups_per_grid": groups,
                        "grid_origin": (0, 0, 0),
                        "thread_index_in_threadgroup": (index,),
                        "thread_index_in_simdgroup": (index % 32,),
                        "simdgroup_index_in_threadgroup": (index // 32,),
                        "simdgroups_per_threadgroup": (math.ceil(threads / 32),),
                        "dispatch_simdgroups_per_threadgroup": (math.ceil(full / 32),),
                        "threads_per_simdgroup": (32,),
                        "thread_execution_width": (32,),
                        "thread_index_in_quadgroup": (index % 4,),
                        "quadgroup_index_in_threadgroup": (index // 4,),
                        "quadgroups_per_threadgroup": (math.ceil(threads / 4),),
                        "dispatch_quadgroups_per_threadgroup": (math.ceil(full / 4),),
                    }[attribute]
                )
    return torch.tensor(rows, dtype=torch.int64)


GRIDS = [
    ((70, 1, 1), (32, 1, 1)),
    ((5, 7, 3), (4, 2, 2)),
    ((9, 4, 1), (16, 8, 1)),
    ((6, 6, 6), (6, 6, 6)),
]


@pytest.mark.parametrize("grid,group", GRIDS, ids=lambda v: "x".join(map(str, v)))
@pytest.mark.parametrize("attribute", list(ATTRIBUTES))
def test_attribute(attribute, grid, group, engine):
    components = ATTRIBUTES[attribute]
    threads = math.prod(grid)
    out = torch.full((threads, 3), -1, dtype=torch.int32)
    n = torch.tensor([*grid, 0], dtype=torch.int32)
    build(SOURCE).launch(f"read_{attribute}", [out, n], list(grid), list(group), engine=engine)
    assert torch.equal(out[:, :components].long(), expected(attribute, grid, group))
    assert (out[:, components:] == -1).all()


@pytest.mark.parametrize("grid,group", GRIDS, ids=lambda v: "x".join(map(str, v)))
@pytest.mark.parametrize("name", NUMBERS)
def test_a_function_asks_for_its_thread(name, grid, group):
    library = build(SOURCE)
    n = torch.tensor([*grid, 0], dtype=torch.int32)
    for engine in engines_of(library, f"ask_{name}"):
        out = torch.full((math.prod(grid), 3), -1, dtype=torch.int32)
        library.launch(f"ask_{name}", [out, n], list(grid), list(group), engine=engine)
        assert torch.equal(out[:, :1].long(), expected(name, grid, group)), engine


def test_kernels_that_ask_have_a_fast_engine_and_fibers():
    engines = {entry["name"]: entry["engines"] for entry in build(SOURCE).kernel_table()}
    assert all(len(engines[f"ask_{name}"]) == 2 for name in NUMBERS)


NARROW = """
kernel void narrow(device uint* out [[buffer(0)]], ushort2 p [[thread_position_in_threadgroup]],
                   ushort i [[thread_index_in_threadgroup]], uint2 g [[thread_position_in_grid]],
                   ushort2 n [[threads_per_grid]]) {
  out[g.y * n.x + g.x] = uint(p.x) + uint(p.y) * 100 + uint(i) * 10000;
}"""


def test_narrow_and_shorter_types(engine):
    out = torch.zeros(6, 10, dtype=torch.int32)
    build(NARROW).launch("narrow", [out], [10, 6], [4, 3], engine=engine)
    y, x = torch.meshgrid(torch.arange(6), torch.arange(10), indexing="ij")
    width = torch.where(x < 8, 4, 2)
    index = (y % 3) * width + x % 4
    assert torch.equal(out.long(), x % 4 + (y % 3) * 100 + index * 10000)
