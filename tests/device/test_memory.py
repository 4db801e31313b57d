"""Memory of the device: what is counted, what is refused, and memory that is never committed."""

import resource
import threading

import pytest
import torch

pytestmark = pytest.mark.usefixtures("free_of_garbage")

MIB = 1 << 20
GIB = 1 << 30


def allocated() -> int:
    return torch.mps.current_allocated_memory()


def kept() -> int:
    """What freed tensors have left for the next ones."""
    return torch.mps.driver_allocated_memory() - allocated()


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.fixture
def limit():
    yield torch.mps.set_per_process_memory_fraction
    torch.mps.set_per_process_memory_fraction(0.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(MIB, device="mps"),
        lambda: torch.ones(MIB).to("mps"),
        lambda: torch.ones(MIB, device="mps").sin(),
        lambda: torch.ones(2, MIB, device="mps").sum(0),
        lambda: torch.empty(0, device="mps").resize_(MIB),
    ],
    ids=["empty", "copy", "stand-in", "reduction", "resized"],
)
def test_a_tensor_counts_until_it_is_freed(make):
    before = allocated()
    x = make()
    assert allocated() - before == x.untyped_storage().nbytes() == 4 * MIB
    view = x[1:]
    del x
    assert allocated() - before == 4 * MIB
    del view
    assert allocated() == before


def test_driver_and_recommended_memory():
    x = torch.empty(MIB, device="mps")
    assert torch.mps.driver_allocated_memory() >= x.nbytes
    assert torch.mps.recommended_max_memory() > GIB


def test_accelerator_statistics():
    torch.accelerator.memory.reset_peak_memory_stats()
    before = torch.accelerator.memory.memory_allocated()
    x = torch.empty(4 * MIB, dtype=torch.uint8, device="mps")
    del x
    assert torch.accelerator.memory.memory_allocated() == before
    assert torch.accelerator.memory.max_memory_allocated() - before == 4 * MIB
    statistics = torch.accelerator.memory.memory_stats()
    assert statistics["allocated_bytes.all.current"] == before
    torch.accelerator.memory.reset_accumulated_memory_stats()
    assert torch.accelerator.memory.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_memory_fraction_is_enforced(limit):
    limit(256 * MIB / torch.mps.recommended_max_memory())
    kept = torch.ones(16 * MIB, dtype=torch.uint8, device="mps")
    message = (
        r"MPS backend out of memory \(MPS allocated: .* MiB, other allocations: 0 bytes, "
        r"max allowed: 256.00 MiB\). Tried to allocate 1.00 GiB"
    )
    with pytest.raises(torch.OutOfMemoryError, match=message):
        torch.empty(GIB, dtype=torch.uint8, device="mps")
    with pytest.raises(torch.OutOfMemoryError):
        kept.to(torch.float32).expand(8, -1).clone()
    assert kept.sum().item() == 16 * MIB
    limit(0.0)
    assert torch.empty(GIB, dtype=torch.uint8, device="mps").nbytes == GIB


def test_results_of_stand_ins_are_limited(limit):
    x = torch.ones(MIB, device="mps")
    limit((allocated() + MIB) / torch.mps.recommended_max_memory())
    with pytest.raises(torch.OutOfMemoryError):
        x.sin()
    limit(0.0)
    assert x.sin().shape == x.shape


def test_impossible_allocation_leaves_the_process_alive():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 4194304.00 GiB"):
        torch.empty(1 << 52, dtype=torch.uint8, device="mps")
    assert torch.ones(2, device="mps").sum().item() == 2


def test_fraction_is_checked():
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.mps.set_per_process_memory_fraction(3.0)


@pytest.mark.parametrize("make", [torch.empty, torch.zeros])
def test_large_tensors_are_committed_when_touched(make):
    before = resident_bytes()
    x = make(2**33, dtype=torch.uint8, device="mps")
    x[-1] = 7
    x[2**32] = 5
    assert x[-1].item() == 7
    assert x[2**32 :: 2**32 - 1].tolist() == [5, 7]
    assert x[2**31].item() == 0
    assert resident_bytes() - before < 64 * MIB


def test_zeroing_releases_memory():
    x = torch.ones(256 * MIB, dtype=torch.uint8, device="mps")
    before = resident_bytes()
    x.zero_()
    assert before - resident_bytes() > 200 * MIB
    assert not x.any()


@pytest.mark.parametrize("offset", [0, 1, 4097])
def test_zeroing_a_slice_keeps_the_rest(offset):
    x = torch.ones(40 * MIB, dtype=torch.uint8, device="mps")
    x[offset : 36 * MIB].zero_()
    assert x[:offset].all()
    assert not x[offset : 36 * MIB].any()
    assert x[36 * MIB :].all()
    x[::2].zero_()
    assert not x[::2].any()
    assert x[36 * MIB + 1 :: 2].all()


def test_no_memory_is_lost_over_many_calls():
    x = torch.randn(1000, device="mps", requires_grad=True)
    (x.sin() * x).sum().backward()
    before, resident = allocated(), resident_bytes()
    for _ in range(2000):
        x.grad = None
        (x.sin() * x).sum().backward()
    assert allocated() == before
    assert resident_bytes() - resident < 8 * MIB


def large(mib: int = 64) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="mps")


@pytest.mark.full
@pytest.mark.parametrize(
    "result",
    [
        lambda x: torch.special.airy_ai(x),
        lambda x: x + x,
        lambda x: x.clone(),
        lambda x: torch.zeros(0, device="mps").resize_(x.numel()).fill_(1),
    ],
    ids=["kernel", "stand-in", "copy", "resized"],
)
def test_large_results_take_the_memory_of_freed_ones(result):
    x = torch.ones(16 * MIB, device="mps")
    address = result(x).data_ptr()
    faults = page_faults()
    for _ in range(4):
        assert result(x).data_ptr() == address
    # A page is at most 4 KiB: without reuse they were 16 Ki or, with huge pages, 32 each time.
    assert page_faults() - faults < 64


def test_freed_large_tensors_are_kept_until_the_cache_is_emptied():
    before = allocated()
    x = large()
    assert allocated() - before == x.nbytes
    assert kept() == 0
    del x
    assert allocated() == before
    assert kept() == 64 * MIB
    statistics = torch.accelerator.memory.memory_stats()
    assert statistics["reserved_bytes.all.current"] == torch.mps.driver_allocated_memory()
    assert statistics["allocated_bytes.all.current"] == before
    torch.mps.empty_cache()
    assert kept() == 0


def test_kept_memory_serves_sizes_that_waste_little():
    address = large(64).data_ptr()
    assert large(32).data_ptr() != address
    torch.mps.empty_cache()
    x = large(64)
    address = x.data_ptr()
    del x
    y = large(60)
    assert y.data_ptr() == address
    assert kept() == 4 * MIB
    y.fill_(1)
    del y
    assert kept() == 64 * MIB


def test_kept_memory_makes_room_under_the_limit(limit):
    start = allocated()
    limit((start + 257 * MIB) / torch.mps.recommended_max_memory())
    tensors = [large(48) for _ in range(5)]
    del tensors
    assert kept() == 240 * MIB
    # The oldest are given back, no more of them than it takes.
    x = large(100)
    assert kept() == 144 * MIB
    y = large(156)
    assert kept() == 0
    del x, y
    assert kept() == 256 * MIB
    limit((start + 128 * MIB) / torch.mps.recommended_max_memory())
    assert kept() <= 128 * MIB


def test_small_tensors_take_the_room_of_kept_memory(limit):
    limit((allocated() + 65 * MIB) / torch.mps.recommended_max_memory())
    del [large(64)][0]
    assert kept() == 64 * MIB
    x = torch.empty(2 * MIB, dtype=torch.uint8, device="mps")
    assert kept() == 0
    assert x.nbytes == 2 * MIB


@pytest.mark.nightly
def test_threads_do_not_share_kept_memory():
    failures = []

    def work(number: int) -> None:
        for _ in range(20):
            x = torch.full((8 * MIB,), number, dtype=torch.int32, device="mps")
            y = x + x
            if not (x == number).all() or not (y == 2 * number).all():
                failures.append(number)
            del x, y
            if number == 0:
                torch.mps.empty_cache()

    before = allocated()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert allocated() == before
    torch.mps.empty_cache()
    assert kept() == 0


def test_large_results_on_the_cpu_are_torchs_own():
    x = torch.ones(16 * MIB)
    x = x + x
    del x
    assert kept() == 0
