"""Streams of torch.mps, events between them, and the check of their order.

The device queues work of streams other than the default one until something waits for it, so a program that lacks
synchronisation reads old values every time.
"""

import gc
import random
import threading

import metalops
import pytest
import torch

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_MPSStreamBase") or torch._C._MPSStreamBase.__module__ == "torch._utils",
    reason="this torch has no torch.mps.Stream",
)

SOURCE = """
#include <c10/metal/error.h>
kernel void fill(device float* out, constant float& value, uint i [[thread_position_in_grid]]) {
  out[i] = value;
}
// out = 3 out + x + 1
kernel void mix(device float* out, device const float* x, uint i [[thread_position_in_grid]]) {
  out[i] = 3 * out[i] + x[i] + 1;
}
kernel void mix_integers(device uint* out, device const uint* x, uint i [[thread_position_in_grid]]) {
  out[i] = 3 * out[i] + x[i] + 1;
}
kernel void different_barriers(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i % 2 == 0) {
    threadgroup_barrier(metal::mem_flags::mem_device);
  } else {
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  out[i] = 1;
}
kernel void reports(device float* out, device c10::metal::ErrorMessages* errors, uint i [[thread_position_in_grid]]) {
  out[i] = 1;
  if (i == 0) {
    TORCH_REPORT_ERROR(errors, "a wrong index");
  }
}
"""


@pytest.fixture(scope="module")
def shader():
    return torch.mps.compile_shader(SOURCE)


@pytest.fixture(autouse=True)
def _nothing_is_queued():
    yield
    torch.mps.synchronize()
    assert torch.mps.current_stream() == torch.mps.default_stream()


def host(tensor):
    """The tensor's memory as the host sees it, without waiting for anything."""
    alias = torch.mps._host_alias_storage(tensor.untyped_storage())
    return torch.empty(0, dtype=tensor.dtype).set_(
        alias, tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def zeros(*sizes):
    tensor = torch.zeros(*sizes, device="mps")
    torch.mps.synchronize()
    return tensor


# ---- the interface -------------------------------------------------------------------------------


def test_streams_come_from_a_pool_of_32_in_turn():
    ids = [torch.mps.Stream().stream_id for _ in range(64)]
    assert sorted(ids[:32]) == list(range(1, 33))
    assert ids[:32] == ids[32:]


def test_streams_of_one_number_are_equal():
    stream = torch.mps.Stream()
    same = torch.mps.Stream(stream_id=stream.stream_id)
    other = torch.mps.Stream()
    assert stream == same and hash(stream) == hash(same)
    assert stream != other
    assert stream.device == torch.device("mps:0")
    assert repr(stream) == f"<torch.mps.Stream stream_id={stream.stream_id}>"
    assert isinstance(stream, torch.Stream)


def test_numbers_that_no_stream_has_are_rejected():
    for number in (33, -2, 1000):
        with pytest.raises(RuntimeError, match=f"Invalid MPS stream ID: {number}"):
            torch.mps.Stream(stream_id=number)


def test_the_default_stream_is_current_at_first():
    assert torch.mps.default_stream().stream_id == 0
    assert torch.mps.current_stream() == torch.mps.default_stream()
    assert torch.accelerator.current_stream() == torch.mps.default_stream()


def test_contexts_select_streams_and_restore_them():
    first, second = torch.mps.Stream(), torch.mps.Stream()
    with torch.mps.stream(first):
        assert torch.mps.current_stream() == first
        assert torch.accelerator.current_stream() == first
        with torch.mps.stream(second):
            assert torch.mps.current_stream() == second
        with torch.mps.stream(None):
            assert torch.mps.current_stream() == first
        with pytest.raises(KeyError), torch.mps.stream(second):
            raise KeyError
        assert torch.mps.current_stream() == first
    assert torch.mps.current_stream() == torch.mps.default_stream()


def test_generic_streams_are_those_of_torch_mps():
    stream = torch.Stream("mps")
    assert stream.stream_id != 0
    with stream:
        assert torch.mps.current_stream().stream_id == stream.stream_id
    torch.accelerator.set_stream(stream)
    assert torch.mps.current_stream() == stream
    torch.accelerator.set_stream(torch.mps.default_stream())
    assert torch.mps.current_stream() == torch.mps.default_stream()
    torch.mps.set_stream(stream)
    torch.mps.set_stream(None)
    assert torch.mps.current_stream() == stream
    torch.mps.set_stream(torch.mps.default_stream())


def test_each_thread_has_a_current_stream():
    seen = []
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        thread = threading.Thread(target=lambda: seen.append(torch.mps.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


# ---- queues --------------------------------------------------------------------------------------


def test_a_launch_waits_in_its_queue(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.fill(x, 1.0)
    assert host(x).eq(0).all()
    assert not stream.query()
    stream.synchronize()
    assert host(x).eq(1).all()
    assert stream.query()


def test_launches_of_a_stream_run_in_order(shader):
    x, y = zeros(4), zeros(4)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        for value in range(100):
            shader.fill(y, float(value))
            shader.mix(x, y)
            x.remainder_(1000)
    expected = 0
    for value in range(100):
        expected = (3 * expected + value + 1) % 1000
    assert host(x).eq(0).all()
    stream.synchronize()
    assert host(x).eq(expected).all()


def test_the_default_stream_runs_at_the_call(shader):
    x = zeros(8)
    shader.fill(x, 1.0)
    assert host(x).eq(1).all()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.add_(1),
        lambda x: x.copy_(torch.ones_like(x)),
        lambda x: x.copy_(x + 1),
        lambda x: x.fill_(1),
        lambda x: x.masked_fill_(x == 0, 1),
        lambda x: x.copy_(torch.cat([x[:2], x[2:]]).cos()),
        lambda x: x.copy_((x.view(2, 4) @ x.view(4, 2)).exp().max() + x),
    ],
)
def test_stock_operators_are_queued(operation):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        operation(x)
    assert host(x).eq(0).all()
    stream.synchronize()
    assert host(x).eq(1).all()


CONV = torch.ops.aten.convolution_backward

# name -> a function that sets x, 8 zeros, to ones; k: a convolution kernel that changes nothing.
QUEUED = {
    "random": lambda x, k: x.copy_(x.normal_().isfinite()),
    "random factory": lambda x, k: x.copy_(torch.randn_like(x).isfinite()),
    "bernoulli": lambda x, k: x.bernoulli_(1.0),
    "random permutation": lambda x, k: x.copy_(torch.randperm(8, device="mps") >= 0),
    "out": lambda x, k: torch.add(x, 1, out=x),
    "new out": lambda x, k: x.copy_(torch.cos(x, out=torch.empty(0, device="mps"))),
    "two outs": lambda x, k: x.copy_(
        torch.max(
            torch.cos(x).view(4, 2),
            1,
            out=(torch.empty(4, device="mps"), torch.empty(4, dtype=torch.long, device="mps")),
        )[0].repeat(2)
    ),
    "list of outs": lambda x, k: torch.split_with_sizes_copy(x + 1, [3, 5], out=(x[:3], x[3:])),
    "index": lambda x, k: x.copy_((x + 1)[torch.arange(8, device="mps")]),
    "index on the CPU": lambda x, k: x.copy_((x + 1)[torch.arange(8)]),
    "index_put": lambda x, k: x.index_put_((torch.arange(8, device="mps"),), x + 1),
    "slice": lambda x, k: x.__setitem__(slice(None), 1),
    "convolution": lambda x, k: x.copy_(torch.conv1d((x + 1).view(1, 1, 8), k, padding=1).view(8)),
    "transposed convolution": lambda x, k: x.copy_(
        torch.conv_transpose1d((x + 1).view(1, 1, 8), k, padding=1).view(8)
    ),
    "gradient of a convolution": lambda x, k: x.copy_(
        CONV(
            (x + 1).view(1, 1, 8), x.view(1, 1, 8), k, [1], [1], [1], [1], False, [0], 1, [True] * 3
        )[0].view(8)
    ),
    "attention": lambda x, k: x.copy_(
        torch.ops.aten._scaled_dot_product_attention_math_for_mps(*[(x + 1).view(1, 1, 8, 1)] * 3)[
            0
        ].view(8)
    ),
    "list of results": lambda x, k: x.copy_(torch.cat(torch._foreach_add([x[:3], x[3:]], 1))),
    "list in place": lambda x, k: torch._foreach_add_([x[:3], x[3:]], 1),
}


@pytest.mark.parametrize("name", QUEUED)
def test_calls_of_all_kinds_are_queued(name):
    x, before, kernel = zeros(8), zeros(8), zeros(1, 1, 3)
    kernel[0, 0, 1] = 1
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        before.add_(1)
        QUEUED[name](x, kernel)
    assert host(before).eq(0).all() and host(x).eq(0).all()
    stream.synchronize()
    assert host(before).eq(1).all() and host(x).eq(1).all()


def test_queued_indices_keep_the_values_of_their_call():
    x = torch.arange(8.0, device="mps")
    index = torch.arange(8)
    with torch.mps.stream(torch.mps.Stream()):
        y = x[index]
        index.fill_(0)
    torch.mps.synchronize()
    assert y.tolist() == list(range(8))


def test_random_numbers_follow_the_order_of_the_calls():
    def draw(first, second):
        torch.mps.manual_seed(3)
        with torch.mps.stream(first):
            x = torch.rand(5, device="mps")
        with torch.mps.stream(second):
            y = torch.empty(5, device="mps").normal_()
        z = torch.randint(100, (5,), device="mps")
        second.synchronize()
        torch.mps.synchronize()
        return [t.tolist() for t in (x, y, z)] + [torch.mps.get_rng_state().tolist()]

    default = torch.mps.default_stream()
    assert draw(torch.mps.Stream(), torch.mps.Stream()) == draw(default, default)


def test_outputs_are_checked_and_resized_at_the_call():
    x = torch.arange(8.0, device="mps")
    torch.mps.synchronize()
    with torch.mps.stream(torch.mps.Stream()):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(x[:-1], 1, out=x[1:])
        with pytest.raises(RuntimeError, match="single memory location"):
            x[1:].add_(x[:-1])
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(x, 1, out=torch.empty(8, dtype=torch.int, device="mps"))
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            y = torch.mul(x.view(2, 4).t(), 2, out=torch.empty(3, device="mps"))
        z = x.clone()
        with pytest.warns(UserWarning, match="resized"):
            torch.sum(z.view(2, 4), 0, out=z)  # the result has the memory of the input
        assert z.shape == (4,)
    expected = torch.empty(3)
    with pytest.warns(UserWarning, match="resized"):
        torch.mul(torch.arange(8.0).view(2, 4).t(), 2, out=expected)
    assert y.stride() == expected.stride()
    torch.mps.synchronize()
    assert y.tolist() == expected.tolist()


def test_an_index_out_of_range_is_raised_where_it_is_waited_for():
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        x[torch.full((2,), 9, device="mps")]
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        stream.synchronize()


def test_sparse_operators_run_after_the_queue():
    x = zeros(4, 4)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        x.fill_diagonal_(2.0)
        sparse = x.to_sparse()
        product = torch.sparse.mm(sparse, x)
        total = (sparse + sparse).coalesce().values()
    stream.synchronize()
    assert product.tolist() == (4 * torch.eye(4)).tolist()
    assert total.tolist() == [4.0] * 4


def test_operators_that_cannot_be_queued_run_after_the_queue(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.fill(x, 1.0)
        assert x.nonzero().numel() == 8
        shader.fill(x, 2.0)
        x.resize_(4)
    stream.synchronize()
    assert host(x).eq(2).all()


def test_the_host_reads_after_the_current_stream_only(shader):
    x, y = zeros(8), zeros(8)
    first, second = torch.mps.Stream(), torch.mps.Stream()
    with torch.mps.stream(first):
        shader.fill(x, 1.0)
    with torch.mps.stream(second):
        shader.fill(y, 2.0)
        assert y.cpu().eq(2).all()
        assert y.sum().item() == 16
    assert host(x).eq(0).all()
    assert x.cpu().eq(0).all()  # the default stream does not wait for `first`
    torch.mps.synchronize()
    assert x.cpu().eq(1).all()


def test_queued_work_keeps_the_numbers_of_its_call(shader):
    x = zeros(8)
    number = torch.tensor(2.0)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        x.add_(number)
        number.fill_(100)
        y = x * number
        number.fill_(0)
    stream.synchronize()
    assert x.cpu().eq(2).all()
    assert y.cpu().eq(200).all()


def test_results_have_the_geometry_of_other_devices():
    a = torch.rand(3, 5, device="mps").t()
    b = torch.rand(5, 3, device="mps", dtype=torch.half)
    torch.mps.synchronize()
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        results = [a + b, a.half() * 2, torch.sort(a, dim=0)[1], a.amax(0, keepdim=True)]
    stream.synchronize()
    a, b = a.cpu(), b.cpu()
    for result, expected in zip(
        results,
        [a + b, a.half() * 2, torch.sort(a, dim=0)[1], a.amax(0, keepdim=True)],
        strict=True,
    ):
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result.cpu(), expected)


def test_errors_of_a_call_are_raised_at_the_call():
    x, y = zeros(3), zeros(4)
    with torch.mps.stream(torch.mps.Stream()):
        with pytest.raises(RuntimeError, match="must match the size"):
            x + y
        with pytest.raises(RuntimeError, match="must match"):
            x.add_(y)
        with pytest.raises(RuntimeError, match="must match|broadcast"):
            x.copy_(y)


def test_a_long_queue_runs_its_oldest_work(shader):
    x = zeros(1)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        for _ in range(5000):
            x.add_(1)
    assert 0 < host(x).item() < 5000
    stream.synchronize()
    assert host(x).item() == 5000


# ---- events --------------------------------------------------------------------------------------


def test_streams_wait_for_streams(shader):
    x, y = zeros(8), zeros(8)
    first, second = torch.mps.Stream(), torch.mps.Stream()
    with torch.mps.stream(first):
        shader.fill(x, 5.0)
    second.wait_stream(first)
    with torch.mps.stream(second):
        shader.mix(y, x)
    assert host(y).eq(0).all()
    second.synchronize()
    assert host(y).eq(6).all()


def test_the_default_stream_waits_for_streams(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.fill(x, 5.0)
    torch.mps.default_stream().wait_stream(stream)
    assert (x + 1).cpu().eq(6).all()


def test_an_event_is_a_point_in_its_stream(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.fill(x, 1.0)
    event = stream.record_event()
    with torch.mps.stream(stream):
        shader.fill(x, 2.0)
    torch.mps.default_stream().wait_event(event)
    assert host(x).eq(1).all()
    event.synchronize()
    assert host(x).eq(1).all()
    assert event.query()
    stream.synchronize()
    assert host(x).eq(2).all()


def test_an_event_that_is_recorded_again_is_the_newer_point(shader):
    x, y = zeros(8), zeros(8)
    stream, reader = torch.mps.Stream(), torch.mps.Stream()
    event = torch.Event("mps")
    with torch.mps.stream(stream):
        shader.fill(x, 1.0)
        event.record(stream)
        reader.wait_event(event)  # the older one
        shader.fill(x, 2.0)
        event.record(stream)
    with torch.mps.stream(reader):
        y.copy_(x)
    reader.synchronize()
    assert host(y).eq(1).all()
    event.synchronize()
    assert host(x).eq(2).all()


def test_polling_an_event_comes_to_an_end(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        for value in range(10):
            shader.fill(x, float(value))
        event = torch.Event("mps")
        event.record()
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 100
    assert polls > 5
    assert host(x).eq(9).all()


def test_elapsed_time_is_that_of_the_stream(shader):
    x = zeros(1 << 20)
    stream = torch.mps.Stream()
    start, end = (torch.Event("mps", enable_timing=True) for _ in range(2))
    with torch.mps.stream(stream):
        start.record()
        for _ in range(5):
            x.sin_()
        end.record()
    assert start.elapsed_time(end) > 0.1


def test_torch_mps_events_are_for_the_default_stream():
    event = torch.mps.Event(enable_timing=True)
    with torch.mps.stream(torch.mps.Stream()):
        with pytest.raises(NotImplementedError, match="Non-default streams"):
            event.record()
        with pytest.raises(NotImplementedError, match="Non-default streams"):
            event.wait()
    event.record()
    end = torch.mps.Event(enable_timing=True)
    end.record()
    end.synchronize()
    assert end.query()
    assert event.elapsed_time(end) >= 0


def test_events_that_were_never_recorded_hold_nobody_up():
    event = torch.Event("mps")
    stream = torch.mps.Stream()
    stream.wait_event(event)
    event.synchronize()
    stream.synchronize()
    assert stream.query()


def test_autograd_runs_backward_on_the_stream_of_forward():
    x = torch.rand(16, device="mps", requires_grad=True)
    torch.mps.synchronize()
    stream = torch.mps.Stream()
    seen = []
    with torch.mps.stream(stream):
        y = (x * x).sin()
        y.register_hook(lambda grad: seen.append(torch.mps.current_stream().stream_id))
        loss = y.sum()
    torch.mps.default_stream().wait_stream(stream)
    loss.backward()
    expected = 2 * x.detach().cpu() * (x.detach().cpu() ** 2).cos()
    torch.testing.assert_close(x.grad.cpu(), expected)
    assert seen == [stream.stream_id]


# ---- memory --------------------------------------------------------------------------------------


def test_memory_lives_as_long_as_queued_work_uses_it(shader):
    out = zeros(1 << 10)
    before = torch.mps.current_allocated_memory()
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        for _ in range(20):
            x = torch.full((1 << 10,), 1.0, device="mps")
            shader.mix(out, x)
            out.fmod_(1024)
            del x
    others = [torch.full((1 << 10,), 7.0, device="mps") for _ in range(40)]
    assert torch.mps.current_allocated_memory() > before + 40 * 4096
    stream.synchronize()
    del others
    gc.collect()
    assert torch.mps.current_allocated_memory() <= before
    expected = 0
    for _ in range(20):
        expected = (3 * expected + 2) % 1024
    assert out.cpu().eq(expected).all()


def test_a_library_stays_loaded_for_queued_launches():
    x = zeros(8)
    stream = torch.mps.Stream()
    library = torch.mps.compile_shader(
        "kernel void put(device float* out, uint i [[thread_position_in_grid]]) { out[i] = 4; }"
    )
    with torch.mps.stream(stream):
        library.put(x)
    del library
    gc.collect()
    stream.synchronize()
    assert host(x).eq(4).all()


def test_record_stream_takes_streams_of_the_device():
    x = zeros(8)
    x.record_stream(torch.mps.Stream())
    x.record_stream(torch.mps.default_stream())


# ---- errors --------------------------------------------------------------------------------------


def test_an_error_in_a_queued_kernel_is_raised_where_it_is_waited_for(shader):
    x, y = zeros(64), zeros(64)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.different_barriers(x, threads=64, group_size=64)
        shader.fill(y, 1.0)
    with pytest.raises(RuntimeError) as error:
        stream.synchronize()
    assert "deadlock in kernel 'different_barriers'" in str(error.value)
    assert f"in 'different_barriers', queued on mps stream {stream.stream_id}" in str(error.value)
    assert host(y).eq(1).all()  # the stream went on
    stream.synchronize()


def test_reports_of_a_queued_kernel_are_raised_where_it_is_waited_for(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.reports(x, x, threads=8, error_buf_idx=1)
    torch.mps.default_stream().synchronize()
    with pytest.raises(torch.AcceleratorError, match="a wrong index"):
        stream.synchronize()


def test_arguments_are_checked_at_the_call(shader):
    x = zeros(8)
    with torch.mps.stream(torch.mps.Stream()):
        with pytest.raises(ValueError, match="Threadgroup size exceeds"):
            shader.fill(x, 1.0, threads=4096, group_size=2048)
        with pytest.raises(RuntimeError, match="nothing is bound to buffer 1"):
            shader.fill(x)


# ---- the check of the order ----------------------------------------------------------------------


def test_a_missing_wait_reads_old_values_and_is_reported(shader):
    def program(synchronised):
        x, y = zeros(8), zeros(8)
        first, second = torch.mps.Stream(), torch.mps.Stream()
        with torch.mps.stream(first):
            shader.fill(x, 5.0)
        if synchronised:
            second.wait_stream(first)
        with torch.mps.stream(second):
            shader.mix(y, x)
        second.synchronize()
        result = host(y)[0].item()
        torch.mps.synchronize()
        return result, first, second

    assert program(synchronised=True)[0] == 6
    for _ in range(3):
        assert program(synchronised=False)[0] == 1
    with metalops.debug.check_streams():
        assert program(synchronised=True)[0] == 6
        with pytest.raises(metalops.debug.SanitizerError) as error:
            program(synchronised=False)
    finding = error.value.findings[0]
    assert finding.kind == "stream-race"
    assert "kernel 'mix' on stream" in finding.message
    assert "reads buffer 1 ('x', float32 [8])" in finding.message
    assert "kernel 'fill' on stream" in finding.message
    assert "writes as buffer 0 ('out', float32 [8])" in finding.message


def test_operators_of_torch_are_checked(shader):
    x = zeros(8)
    stream = torch.mps.Stream()
    with metalops.debug.check_streams():
        with torch.mps.stream(stream):
            y = x * 2
        with pytest.raises(metalops.debug.SanitizerError) as error:
            y + 1
        message = error.value.findings[0].message
        assert (
            "operator 'aten::add.Tensor' on the default stream reads 'self' (float32 [8])"
            in message
        )
        assert f"operator 'aten::mul.Tensor' on stream {stream.stream_id} writes" in message
        with pytest.raises(metalops.debug.SanitizerError, match="aten::fill_|aten::zero_"):
            x.fill_(1)  # the multiplication may not have read it yet
        stream.synchronize()
        y + 1
        x.fill_(1)


def test_kernels_of_dispatch_stubs_run_in_order_and_are_checked(shader):
    """torch's kernels for all devices, called without the MPS key (see test_dispatch_stubs)."""
    no_device, cpu = map(
        torch._C.DispatchKeySet, (torch._C.DispatchKey.Undefined, torch._C.DispatchKey.CPU)
    )
    fmax, copy = torch.ops.aten.fmax.out.redispatch, torch.ops.aten.copy_.default.redispatch
    x, y, z = zeros(8), zeros(8), zeros(8)
    stream = torch.mps.Stream()
    with torch.mps.stream(stream):
        shader.fill(x, 5.0)
        copy(no_device, y, x)
        shader.fill(x, 7.0)
        fmax(cpu, x, y, out=z)
    stream.synchronize()
    assert y.cpu().eq(5).all() and z.cpu().eq(7).all()
    with metalops.debug.check_streams():
        with torch.mps.stream(stream):
            shader.fill(x, 5.0)
        for call in (lambda: copy(no_device, y, x), lambda: fmax(cpu, x, y, out=z)):
            with pytest.raises(
                metalops.debug.SanitizerError, match=r"reads input 0 \(float32 \[8\]\)"
            ):
                call()
        stream.synchronize()
        copy(no_device, y, x)
        with (
            torch.mps.stream(stream),
            pytest.raises(metalops.debug.SanitizerError, match="aten::copy_"),
        ):
            shader.fill(y, 1.0)
        torch.mps.synchronize()


def test_disjoint_parts_of_a_tensor_need_no_order(shader):
    x = zeros(16)
    first, second = torch.mps.Stream(), torch.mps.Stream()
    with metalops.debug.check_streams():
        with torch.mps.stream(first):
            shader.fill(x[:8], 1.0)
        with torch.mps.stream(second):
            shader.fill(x[8:], 2.0)
            with pytest.raises(metalops.debug.SanitizerError):
                shader.fill(x[7:9], 3.0)
        torch.mps.synchronize()


def test_reads_need_no_order(shader):
    x, y, z = zeros(8), zeros(8), zeros(8)
    with metalops.debug.check_streams():
        for out in (y, z):
            with torch.mps.stream(torch.mps.Stream()):
                shader.mix(out, x)
        torch.mps.synchronize()


def test_without_halting_findings_are_raised_at_synchronisation(shader):
    x = zeros(8)
    with metalops.debug.check_streams(halt=False):
        for _ in range(2):
            with torch.mps.stream(torch.mps.Stream()):
                shader.fill(x, 1.0)
        with pytest.raises(metalops.debug.SanitizerError, match="stream-race"):
            torch.mps.synchronize()


@pytest.mark.parametrize("recorded", [False, True])
def test_memory_that_is_freed_in_use_is_reported(shader, recorded):
    stream = torch.mps.Stream()
    with metalops.debug.check_streams():
        x, out = torch.zeros(8, device="mps"), torch.zeros(8, device="mps")
        stream.wait_stream(torch.mps.default_stream())
        with torch.mps.stream(stream):
            shader.mix(out, x)
        if recorded:
            x.record_stream(stream)
        del x
        if recorded:
            torch.mps.synchronize()
        else:
            with pytest.raises(
                metalops.debug.SanitizerError, match="(?s)freed-in-use.*record_stream"
            ):
                torch.mps.synchronize()


# ---- random programs -----------------------------------------------------------------------------

TENSORS, STREAMS = 4, 4


def wrapped(number):
    """An integer as 32 bits hold it."""
    return (number + 2**31) % 2**32 - 2**31


class Model:
    """Works and waits of a program as sets in plain Python: for each stream, all works that precede its next one."""

    def __init__(self):
        self.accesses = []  # of each work: what it reads, what it writes
        self.before = [set() for _ in range(STREAMS)]
        self.before_all = set()  # what the host has waited for

    def conflicts(self, stream, reads, writes):
        known = self.before[stream] | self.before_all
        return any(
            work not in known and (writes & (old_reads | old_writes) or reads & old_writes)
            for work, (old_reads, old_writes) in enumerate(self.accesses)
        )

    def add(self, stream, reads, writes):
        self.accesses.append((reads, writes))
        self.before[stream] |= self.before_all | {len(self.accesses) - 1}


class Program:
    """A random program, run on the device. Where the model finds a conflict, waits are inserted, with a probability;
    others come at random. `checked`: the device checks the order, and reports exactly the model's conflicts."""

    def __init__(self, shader, seed, length, synchronised=1.0, checked=False):
        self.random = random.Random(seed)
        self.shader, self.checked, self.synchronised = shader, checked, synchronised
        self.model = Model()
        self.values = list(range(1, TENSORS + 1))
        self.tensors = [torch.full((3,), v, dtype=torch.int, device="mps") for v in self.values]
        torch.mps.synchronize()
        self.streams = [torch.mps.default_stream()]
        self.streams += [torch.mps.Stream() for _ in range(STREAMS - 1)]
        self.events = []  # with the works that they come after
        self.conflicts = 0
        for _ in range(length):
            self.work()
        torch.mps.synchronize()

    def work(self):
        stream = self.random.randrange(STREAMS)
        out, x = self.random.sample(range(TENSORS), 2)
        kind = self.random.randrange(4)
        reads, writes = {x} if kind == 3 else {x, out}, {out}
        while self.random.random() < 0.2:
            self.wait(*self.random.sample(range(STREAMS), 2))
        while (
            self.model.conflicts(stream, reads, writes) and self.random.random() < self.synchronised
        ):
            self.wait(stream, self.random.randrange(STREAMS))
        conflict = self.model.conflicts(stream, reads, writes)
        self.conflicts += conflict
        self.model.add(stream, reads, writes)
        with torch.mps.stream(self.streams[stream]):
            if conflict and self.checked:
                with pytest.raises(metalops.debug.SanitizerError):
                    self.run(kind, self.tensors[out], self.tensors[x])
                return
            self.run(kind, self.tensors[out], self.tensors[x])
        a, b = self.values[out], self.values[x]
        self.values[out] = wrapped([3 * a + b + 1, a + b, a * b, b][kind])

    def run(self, kind, out, x):
        if kind == 0:
            self.shader.mix_integers(out, x)
        elif kind == 1:
            out.add_(x)
        elif kind == 2:
            out.mul_(x)
        else:
            out.copy_(x)

    def wait(self, waiting, other):
        model, streams = self.model, self.streams
        kind = self.random.randrange(8)
        if kind < 3:
            streams[waiting].wait_stream(streams[other])
            model.before[waiting] |= model.before[other]
        elif kind < 5:
            self.events.append((streams[other].record_event(), set(model.before[other])))
            event, before = self.random.choice(self.events)
            streams[waiting].wait_event(event)
            model.before[waiting] |= before
        elif kind == 5:
            streams[other].synchronize()
            model.before_all |= model.before[other]
        elif kind == 6 and self.events:
            event, before = self.random.choice(self.events)
            event.synchronize()
            model.before_all |= before
        elif self.random.random() < 0.1:
            torch.mps.synchronize()
            model.before_all |= set(range(len(model.accesses)))


@pytest.mark.parametrize("seed", range(30))
def test_synchronised_programs_compute_as_in_order(shader, seed):
    program = Program(shader, seed, length=60)
    assert program.conflicts == 0
    assert [tensor.cpu().tolist() for tensor in program.tensors] == [
        [v] * 3 for v in program.values
    ]


@pytest.mark.parametrize("seed", range(30))
def test_the_check_reports_what_nothing_orders_and_nothing_else(shader, seed):
    with metalops.debug.check_streams():
        ordered = Program(shader, seed, length=60, checked=True)
        unordered = Program(shader, seed, length=60, synchronised=0.7, checked=True)
    assert ordered.conflicts == 0
    assert [tensor.cpu().tolist() for tensor in ordered.tensors] == [
        [v] * 3 for v in ordered.values
    ]
    assert unordered.conflicts > 0


def test_threads_share_streams(shader):
    """Each thread has tensors of its own, and all submit to the same streams, which they wait for at random."""
    streams = [torch.mps.Stream() for _ in range(3)]
    failures = []

    def work(seed):
        choose = random.Random(seed)
        x = zeros(4)
        expected = 0
        for step in range(200):
            stream = choose.choice(streams)
            with torch.mps.stream(stream):
                x.add_(step)
            expected += step
            if choose.random() < 0.5:
                stream.synchronize()
            else:
                for other in streams:
                    other.wait_stream(stream)
        torch.mps.synchronize()
        if not x.cpu().eq(expected).all():
            failures.append((seed, x.cpu(), expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
