"""What torch asks of the MPS backend: names, events, streams, profiler, capture."""

import re
from pathlib import Path

import pytest
import torch


def test_every_declared_function_exists():
    declarations = Path(torch._C.__file__).parent / "_C" / "__init__.pyi"
    names = re.findall(r"^def (_mps_\w+)\(", declarations.read_text(), re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if not hasattr(torch._C, name)] == []


def test_name_and_cores():
    assert torch.backends.mps.get_name().startswith("metalops software device")
    assert torch.backends.mps.get_core_count() >= 1


def test_mps_events():
    start, end = torch.mps.Event(enable_timing=True), torch.mps.Event(enable_timing=True)
    assert not start.query()
    start.record()
    torch.ones(1000, device="mps").sin()
    end.record()
    end.wait()
    end.synchronize()
    assert start.query()
    assert 0 < start.elapsed_time(end) < 10_000


def test_mps_events_without_timing():
    start, end = torch.mps.Event(), torch.mps.Event()
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        start.elapsed_time(end)


def test_unknown_event():
    with pytest.raises(RuntimeError, match="Invalid Event ID"):
        torch._C._mps_recordEvent(10**6)


def test_generic_events_and_streams():
    start, end = torch.Event("mps", enable_timing=True), torch.Event("mps", enable_timing=True)
    start.record()
    torch.ones(1000, device="mps").sin()
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    stream = torch.accelerator.current_stream()
    assert stream.device.type == "mps"
    stream.synchronize()
    assert torch.Stream("mps").query()


def test_profiler():
    with torch.mps.profiler.profile(mode="interval,event", wait_until_completed=True):
        torch.ones(3, device="mps")
    with pytest.raises(RuntimeError, match="Invalid Signpost trace mode"):
        torch.mps.profiler.start(mode="nonsense")


def test_torch_profiler_sees_operators():
    with torch.profiler.profile() as profile:
        torch.ones(3, device="mps").sin()
    assert "aten::sin" in {event.key for event in profile.key_averages()}


def test_capture_needs_an_apple_gpu():
    assert not torch.mps.profiler.is_metal_capture_enabled()
    assert not torch.mps.profiler.is_capturing_metal()
    with pytest.raises(RuntimeError, match="needs an Apple GPU"):
        with torch.mps.profiler.metal_capture("trace"):
            pass
