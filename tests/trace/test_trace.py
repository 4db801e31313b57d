"""What a block launches is recorded in a file, and runs again with the same results."""

from __future__ import annotations

import json
import zipfile

import pytest
import torch
from metalops import _host, debug, trace
from metalops.trace.cli import main
from metalops.trace.numbers import kind_of, make
from metalops.trace.replay import SoftwareDevice, replay

SCALED = """
#include <metal_stdlib>
using namespace metal;
constant float factor [[function_constant(0)]];
kernel void scaled(device float* out [[buffer(0)]], constant float* in [[buffer(1)]],
                   constant float& by [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[i] = in[i] * by;
}
kernel void gathered(device float* out [[buffer(0)]], constant ulong* addresses [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  out[i] = reinterpret_cast<device float*>(addresses[i])[0];
}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.trace"


def replayed(path):
    return list(replay(trace.load(path), SoftwareDevice(), check=True))


@pytest.mark.full
def test_operators_run_again_with_the_same_results(path):
    x = torch.randn(40, 30, device="mps")
    with debug.capture(path):
        torch._masked_softmax(x, x > 0, 1)
        torch.special.airy_ai(x.t())
    rows = replayed(path)
    assert [row.launch.kernel.split("_")[0] for row in rows] == ["masked", "special"]
    assert all(row.problems == () for row in rows)


def test_another_result_is_told_with_its_place(path):
    x = torch.rand(100, device="mps")
    with debug.capture(path):
        torch.special.airy_ai(x)
    recorded = trace.load(path)
    (launch,) = recorded.launches
    ((memory, name),) = launch.results.items()
    wrong = bytearray(recorded.blobs[name])
    wrong[40:44] = b"\0\0\x80\x41"  # element 10: 16.0
    launch.results[memory] = recorded.add_blob(bytes(wrong))
    (row,) = replay(recorded, SoftwareDevice(), check=True)
    assert "1 of 100 elements differ, the worst at 10" in row.problems[0]
    assert "instead of 16" in row.problems[0]


def test_what_the_host_writes_between_launches_is_recorded(path):
    shader = torch.mps.compile_shader(SCALED)
    x = torch.ones(10, device="mps")
    out = torch.empty_like(x)
    with debug.capture(path):
        shader.scaled(out, x, 2.0)
        x.fill_(5)
        shader.scaled(x, out, 3.0)  # its input is what the first launch left
    recorded = trace.load(path)
    kinds = [type(e).__name__ for e in recorded.events]
    assert kinds == ["Write", "Write", "Launch", "Write", "Launch"]
    assert all(row.problems == () for row in replayed(path))


def test_arguments_in_one_allocation_stay_in_one(path):
    shader = torch.mps.compile_shader(SCALED)
    both = torch.arange(20.0, device="mps")
    with debug.capture(path):
        shader.scaled(both[10:], both[:10], 2.0)
    recorded = trace.load(path)
    assert len(recorded.memories) == 1
    assert [a.offset for a in recorded.launches[0].arguments if a.memory is not None] == [40, 0]
    assert all(row.problems == () for row in replayed(path))


def test_addresses_of_listed_tensors_are_those_of_the_replay(path):
    shader = torch.mps.compile_shader(SCALED)
    tensors = [torch.full((3,), float(i), device="mps") for i in range(4)]
    out = torch.empty(4, device="mps")
    with debug.capture(path):
        shader.gathered(out, tensors)
    del tensors
    (launch,) = trace.load(path).launches
    assert [at for at, _, _ in launch.arguments[1].addresses] == [0, 8, 16, 24]
    assert all(row.problems == () for row in replayed(path))


def test_a_library_that_was_opened_twice_still_has_its_source(path):
    """The loader gives both the same memory."""
    from metalops import msl

    file = msl.compile_source(SCALED)
    library, other = _host.Library(file), _host.Library(file)
    del other
    with debug.capture(path):
        library.launch("scaled", [torch.zeros(4), torch.ones(4), b"\0\0\x80\x3f"], 4, 4)
    (row,) = replayed(path)
    assert row.problems == ()


def test_function_constants_keep_their_values(path):
    source = """
    #include <metal_stdlib>
    constant float factor [[function_constant(3)]];
    kernel void scaled(device float* out, uint i [[thread_position_in_grid]]) { out[i] = factor; }
    """
    from metalops import msl

    library = _host.Library(msl.compile_source(source))
    library = library.specialise({3: b"\0\0\xa0\x40"})
    out = torch.zeros(4)
    with debug.capture(path):
        library.launch("scaled", [out], 4, 4)
    assert out.tolist() == [5.0] * 4
    (launch,) = trace.load(path).launches
    assert launch.constants == {3: "0000a040"}
    assert all(row.problems == () for row in replayed(path))


@pytest.mark.nightly
def test_without_contents_only_kinds_of_numbers_are_stored(path):
    x = torch.randn(1 << 16, device="mps")
    mask = torch.rand(1 << 16, device="mps") < 0.25
    with debug.capture(path, contents=False):
        torch._masked_softmax(x, mask, 0)
    recorded = trace.load(path)
    kinds = {e.generator["kind"] for e in recorded.events if isinstance(e, trace.Write)}
    assert "bernoulli" in kinds and kinds <= {"bernoulli", "normal", "uniform"}
    (probability,) = [
        e.generator["probability"]
        for e in recorded.events
        if isinstance(e, trace.Write) and e.generator["kind"] == "bernoulli"
    ]
    assert 0.2 < probability < 0.3
    assert path.stat().st_size < 30_000
    (row,) = replay(recorded, SoftwareDevice(), check=True)
    assert row.problems is None


def test_numbers_that_are_not_negative_are_made_anew_without_negative_ones(path):
    x = torch.rand(1000, device="mps") * 20
    with debug.capture(path, contents=False):
        torch.special.airy_ai(x)
    recorded = trace.load(path)
    (launch,) = recorded.launches
    made = {e.memory: e.generator for e in recorded.events if isinstance(e, trace.Write)}
    (generator,) = [
        made[a.memory] for a in launch.arguments if a.memory is not None and not a.writable
    ]
    assert generator["kind"] == "uniform"
    assert generator["low"] >= 0 and 19 < generator["high"] <= 20


@pytest.mark.parametrize(
    "dtype",
    [torch.uint16, torch.uint32, torch.uint64, torch.int64, torch.bool, torch.half],
    ids=str,
)
def test_numbers_of_a_kind_are_made_anew(dtype):
    """Of integers, also the largest ones."""
    if dtype == torch.bool:
        values = torch.rand(1000) < 0.5
    elif dtype.is_floating_point:
        values = torch.rand(1000, dtype=dtype)
    else:
        largest = torch.iinfo(dtype).max
        values = torch.tensor([3, largest if dtype.is_signed else largest // 2], dtype=dtype)
    kind = kind_of(values)
    made = torch.zeros(1000, dtype=dtype)
    make(made, kind, torch.Generator().manual_seed(1))
    assert len(made.unique()) == 2 if dtype == torch.bool else len(made.unique()) > 100
    assert kind_of(made)["kind"] == kind["kind"]
    if kind["kind"] == "integers":
        again = kind_of(made)
        assert kind["low"] <= again["low"] < again["high"] <= kind["high"]


def test_pieces_of_rows_are_compared_as_numbers(path):
    """The device runs strided elementwise kernels as dense ones, row by row."""
    x = torch.randn(30, 40, device="mps")
    with debug.capture(path):
        torch.special.airy_ai(x[:, ::2])
    for launch in trace.load(path).launches:
        assert launch.kernel == "special_airy_ai_dense_scalar_float_float"
        assert [a.tensor[0] for a in launch.arguments] == ["float32", "float32"]
    assert all(row.problems == () for row in replayed(path))


def test_launches_that_are_not_executed_leave_memory_alone(path):
    x = torch.randn(1000, device="mps")
    out = torch.full_like(x, 7)
    with debug.capture(path, execute=False):
        torch.special.airy_ai(x, out=out)
    assert (out == 7).all()
    (row,) = replay(trace.load(path), SoftwareDevice(), check=True)
    assert row.problems is None
    torch.special.airy_ai(x, out=out)
    assert not (out == 7).any()


def test_gpu_flavours_are_recorded_and_given_back(path):
    x = torch.randn(1 << 20, device="mps")
    with debug.capture(path, contents=False, execute=False, gpu=True):
        torch.special.airy_ai(x)
        torch.special.airy_ai(x.view(1024, 1024)[:, ::2])
    dense, tiles = trace.load(path).launches
    assert dense.kernel == "special_airy_ai_dense_float_float" and dense.grid[0] == 1 << 18
    assert tiles.kernel == "special_airy_ai_tiles_float_float"
    assert _host.set_elementwise_flavour("", "") == ("", "")


def test_a_kernel_that_fails_is_in_the_trace(path):
    source = """
    #include <metal_stdlib>
    kernel void stuck(device int* out, uint i [[thread_position_in_threadgroup]]) {
      if (i == 0) {
        metal::threadgroup_barrier(metal::mem_flags::mem_none);
      } else {
        out[i] = 1;
        metal::threadgroup_barrier(metal::mem_flags::mem_device);
      }
    }
    """
    shader = torch.mps.compile_shader(source)
    out = torch.zeros(64, dtype=torch.int32, device="mps")
    with pytest.raises(RuntimeError), debug.capture(path):
        shader.stuck(out, group_size=64)
    (launch,) = trace.load(path).launches
    assert launch.kernel == "stuck"
    with pytest.raises(RuntimeError):
        replayed(path)


def test_a_capture_inside_another_records_for_both(path, tmp_path):
    x = torch.rand(30, device="mps")
    with debug.capture(path):
        with debug.capture(tmp_path / "b.trace"):
            y = torch.special.airy_ai(x)
        torch.special.airy_ai(y)
    torch.testing.assert_close(y.cpu(), torch.special.airy_ai(x.cpu()), rtol=1e-5, atol=1e-5)
    assert len(trace.load(path).launches) == 2
    assert len(trace.load(tmp_path / "b.trace").launches) == 1
    for one in (path, tmp_path / "b.trace"):
        assert all(row.problems == () for row in replayed(one))


@pytest.fixture
def recorded(path):
    with debug.capture(path):
        torch.special.airy_ai(torch.rand(30, device="mps"))
    return path


def test_command_line_checks_and_times(recorded, capsys):
    assert main([str(recorded), "--check", "--time"]) == 0
    output = capsys.readouterr().out
    assert "special_airy_ai_dense_scalar_float_float  30 threads" in output
    assert "240 bytes" in output and "of a copy" in output
    assert "all results are as recorded" in output


def test_command_line_fails_where_results_differ(recorded, capsys):
    loaded = trace.load(recorded)
    (launch,) = loaded.launches
    ((memory, name),) = launch.results.items()
    launch.results[memory] = loaded.add_blob(bytes(len(loaded.blobs[name])))
    trace.save(loaded, recorded)
    assert main([str(recorded), "--check"]) == 1
    assert "30 of 30 elements differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "is not a trace"),
        ({"kind": "other"}, "is not a trace"),
        ({"kind": "metalops trace", "version": 99}, "version 99"),
        ({"kind": "metalops trace", "version": 1}, "version 1"),
        ({"kind": "metalops trace", "version": 2}, "damaged"),
    ],
)
def test_files_that_are_no_traces_are_refused(path, content, message, capsys):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("trace.json", json.dumps(content))
    with pytest.raises(trace.TraceError, match=message):
        trace.load(path)
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


def _changed(path, change):
    with zipfile.ZipFile(path) as archive:
        files = {n: archive.read(n) for n in archive.namelist()}
    document = json.loads(files["trace.json"])
    change(document)
    files["trace.json"] = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def _beyond(document):
    document["events"][-1]["launch"]["arguments"][0]["offset"] = 121


def _no_source(document):
    document["events"][-1]["launch"]["source"] = "0" * 64


def _larger(document):
    document["memories"][0]["bytes"] = 10**6


def _unknown_event(document):
    document["events"].append({"run": {}})


@pytest.mark.parametrize("change", [_beyond, _no_source, _larger, _unknown_event])
def test_damaged_traces_are_refused(recorded, change):
    _changed(recorded, change)
    with pytest.raises(trace.TraceError, match="damaged"):
        trace.load(recorded)


def test_addresses_in_a_tensor_are_those_of_the_replay(path):
    """Which operators write there that pass many tensors."""
    shader = torch.mps.compile_shader(SCALED)
    tensors = [torch.full((3,), float(i), device="mps") for i in range(4)]
    addresses = torch.zeros(4, dtype=torch.int64, device="mps")
    out = torch.empty(4, device="mps")
    with debug.capture(path):
        shader.gathered(out, tensors)  # asks for the addresses
        addresses.copy_(torch.tensor([t.data_ptr() for t in tensors]))
        shader.gathered(out, addresses)
    del tensors, addresses
    first, second = trace.load(path).launches
    assert [at for at, _, _ in second.arguments[1].addresses] == [0, 8, 16, 24]
    assert all(row.problems == () for row in replayed(path))
