"""air.simdgroup_async_copy_1d and _2d, which kernels declare with __asm, compared with a plain model."""

import pytest
import torch

DECLARED = r"""
    struct _simdgroup_event_t;
    thread _simdgroup_event_t* __metal_simdgroup_async_copy_1d(
      ulong, ulong, threadgroup void*, const device void*, ulong) __asm("air.simdgroup_async_copy_1d.p3i8.p1i8");
    thread _simdgroup_event_t* __metal_simdgroup_async_copy_1d(
      ulong, ulong, device void*, const threadgroup void*, ulong) __asm("air.simdgroup_async_copy_1d.p1i8.p3i8");
    thread _simdgroup_event_t* __metal_simdgroup_async_copy_2d(
      ulong, ulong, threadgroup void*, ulong, ulong, ulong2, const device void*, ulong, ulong, ulong2, long2, int)
      __asm("\01air.simdgroup_async_copy_2d.p3i8.p1i8");
    thread _simdgroup_event_t* __metal_simdgroup_async_copy_2d(
      ulong, ulong, device void*, ulong, ulong, ulong2, const threadgroup void*, ulong, ulong, ulong2, long2, int)
      __asm("air.simdgroup_async_copy_2d.p1i8.p3i8");
    void __metal_wait_simdgroup_events(int, thread _simdgroup_event_t**) __asm("air.wait_simdgroup_events");
    enum class clamp_mode { to_zero = 0, to_edge = 1 };
    struct event {
      thread _simdgroup_event_t* e;
      template <typename T>
      void load(threadgroup T* to, ushort row, ushort2 tile, const device T* of, uint of_row, ushort2 of_tile,
                bool transposed, clamp_mode mode) thread {
        if (transposed) { tile = tile.yx; of_tile = of_tile.yx; }
        e = __metal_simdgroup_async_copy_2d(sizeof(T), alignof(T), reinterpret_cast<threadgroup void*>(to), ulong(row), 1,
          ulong2(tile), reinterpret_cast<const device void*>(of), ulong(of_row), 1, ulong2(of_tile), long2(0), int(mode));
      }
      template <typename T>
      void store(device T* to, uint row, ushort2 tile, const threadgroup T* of, ushort of_row, ushort2 of_tile) thread {
        e = __metal_simdgroup_async_copy_2d(sizeof(T), alignof(T), reinterpret_cast<device void*>(to), ulong(row), 1,
          ulong2(tile), reinterpret_cast<const threadgroup void*>(of), ulong(of_row), 1, ulong2(of_tile), long2(0), 0);
      }
      static void wait(int count, thread event* events) {
        __metal_wait_simdgroup_events(count, reinterpret_cast<thread _simdgroup_event_t**>(events));
      }
    };
    template <typename T>
    kernel void tiles(device T* out, device const T* in, constant ushort2& tile, constant ushort2& of_tile,
                      constant uint& of_row, constant uint& mode, ushort lane [[thread_index_in_simdgroup]],
                      ushort group [[simdgroup_index_in_threadgroup]]) {
      threadgroup T kept[512];
      const ushort row = tile.x + 1;
      if (group == 0) {
        event e[1];
        e[0].load(kept, row, tile, in, of_row, of_tile, false, clamp_mode(mode));
        event::wait(1, e);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (ushort i = lane + 32 * group; i < tile.y * row; i += 64) if (i % row < tile.x) kept[i] += T(1);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (group == 1) {
        event e;
        e.store(out, tile.x, tile, kept, row, tile);
        event::wait(1, &e);
      }
    }
    template [[host_name("tiles_float")]] kernel decltype(tiles<float>) tiles<float>;
    template [[host_name("tiles_half")]] kernel decltype(tiles<half>) tiles<half>;
    template [[host_name("tiles_char")]] kernel decltype(tiles<char>) tiles<char>;
    kernel void line(device int* out, device const int* in) {
      threadgroup int kept[100];
      thread _simdgroup_event_t* e = __metal_simdgroup_async_copy_1d(4, 4, (threadgroup void*)kept, (const device void*)in, 77);
      __metal_wait_simdgroup_events(1, &e);
      e = __metal_simdgroup_async_copy_1d(4, 4, (device void*)out, (const threadgroup void*)kept, 76);
      __metal_wait_simdgroup_events(1, &e);
    }
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["group", "fiber"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_tiles_with_clamping(program, engine, dtype):
    p = program(DECLARED)
    name = {torch.float32: "float", torch.float16: "half", torch.int8: "char"}[dtype]
    x = torch.arange(40 * 21).remainder(119).to(dtype).view(40, 21)
    for width, height, of_width, of_height in ((8, 8, 8, 8), (16, 20, 11, 7), (5, 9, 5, 3), (9, 4, 2, 4)):  # fmt: skip
        for mode in (0, 1):
            out = torch.full((height, width), 99).to(dtype)
            sizes = [torch.tensor(t, dtype=torch.int16) for t in ((width, height), (of_width, of_height))]  # fmt: skip
            numbers = [torch.tensor([n], dtype=torch.int32) for n in (21, mode)]
            p.launch(f"tiles_{name}", out, x, *sizes, *numbers, grid=64, group=64, engine=engine)
            rows, columns = torch.arange(height)[:, None], torch.arange(width)
            clamped = x[rows.clamp(max=of_height - 1), columns.clamp(max=of_width - 1)]
            inside = (rows < of_height) & (columns < of_width)
            expected = clamped if mode else torch.where(inside, clamped, 0)
            assert torch.equal(out, expected + 1), (width, height, of_width, of_height, mode)


@pytest.mark.parametrize("threads", [32, 20])
@pytest.mark.parametrize("engine", ["group", "fiber"])
def test_a_line_by_whole_and_partial_simdgroups(program, engine, threads):
    x = torch.arange(100, dtype=torch.int32)
    out = torch.zeros(100, dtype=torch.int32)
    program(DECLARED).launch("line", out, x, grid=threads, engine=engine)
    assert out.tolist() == [*range(76), *[0] * 24]
