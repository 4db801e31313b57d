"""torch's kernels for all devices with mps tensors, called under another key than MPS: their DispatchStubs have entries for
mps, as on a Mac.
"""

import itertools

import metalops
import pytest
import torch
from metalops import _host
from torch.testing import assert_close

aten = torch.ops.aten

# No key of a device: what a kernel on the MPS key calls that takes its key away, to reach torch's own.
NO_DEVICE = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

DEVICES = ("cpu", "mps")
DTYPES = (torch.float32, torch.float16, torch.int32, torch.bool, torch.complex64)


def layouts(shape, dtype, device):
    torch.manual_seed(1)
    x = (torch.randn(shape) * 3).to(dtype).to(device)
    whole = torch.zeros([2 * size for size in shape], dtype=dtype, device=device)
    strided = whole[tuple(slice(None, None, 2) for _ in shape)]
    strided.copy_(x)
    return {
        "contiguous": x,
        "transposed": x.mT.clone().mT,
        "strided": strided,
        "expanded": x[:1].expand(shape),
    }


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("to", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_of_every_layout_and_device(dtype, to):
    for source, target in itertools.product(DEVICES, DEVICES):
        for name, x in layouts((5, 9), dtype, source).items():
            for other, y in layouts((5, 9), to, target).items():
                if other == "expanded":
                    continue
                expected = x.cpu().to(to)
                result = aten.copy_.default.redispatch(NO_DEVICE, y, x)
                assert result is y
                assert torch.equal(y.cpu(), expected), (name, other)


def test_copies_to_the_host_are_noticed():
    x = torch.ones(3, device="mps")
    with metalops.testing.no_host_copies(), pytest.raises(RuntimeError, match="no_host_copies"):
        aten.copy_.default.redispatch(NO_DEVICE, torch.zeros(3), x)


def test_a_package_that_passes_calls_on():
    """As packages do that give 8-bit floats to mps: their kernel calls torch's without its own key."""
    library = torch.library.Library("aten", "IMPL")
    seen = []

    def copy_(keys, self, source, non_blocking=False):
        seen.append(self.shape)
        rest = keys.remove(torch._C.DispatchKey.MPS)
        return aten.copy_.default.redispatch(rest, self, source, non_blocking)

    library.impl("copy_", copy_, "MPS", with_keyset=True, allow_override=True)
    try:
        x = torch.arange(6.0).reshape(2, 3)
        assert torch.equal(x.to("mps").t().half().contiguous().cpu(), x.t().half())
        assert len(seen) >= 3
    finally:
        library._destroy()


def numbers(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(35, generator=generator) * 0.8 + 0.1
    if dtype.is_complex:
        return torch.complex(x, x.flip(0))
    return x if dtype.is_floating_point else (x * 9).to(dtype)


def elementwise() -> dict[str, list]:
    """The overloads with an output that take one, two or three tensors and nothing that has no default."""
    found = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::") or not torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CPU"
        ):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is None or packet.startswith("_") or torch.Tag.nondeterministic_seeded in op.tags:
            continue
        outs = [a.name for a in op._schema.arguments if a.is_out]
        needed = [a for a in op._schema.arguments if not a.is_out and not a.has_default_value()]
        kinds = [str(a.type) for a in needed]
        if len(outs) == 1 and 1 <= len(kinds) <= 3 and set(kinds) <= {"Tensor", "number"}:
            found[name] = (op, outs[0], kinds)
    return found


ELEMENTWISE = elementwise()


def call_both(op, out, kinds, dtype):
    """The result of the CPU's kernel with CPU tensors, and with mps tensors; or nothing if it refuses the former."""
    operands = [numbers(dtype, i) if kind == "Tensor" else 2 for i, kind in enumerate(kinds)]
    refusals = (RuntimeError, IndexError, NotImplementedError, TypeError)
    try:
        expected = op(*operands, **{out: torch.empty(0, dtype=dtype)})
    except refusals:
        try:  # its results may be of other dtypes
            expected = op(*operands, **{out: torch.empty(0, dtype=torch.bool)})
        except refusals:
            return None
    on_mps = [x.to("mps") if isinstance(x, torch.Tensor) else x for x in operands]
    actual = torch.empty_like(expected, device="mps")
    op.redispatch(CPU, *on_mps, **{out: actual})
    return expected, actual


REACHED = 100  # at least so many entries


def test_elementwise_kernels_write_what_they_write_on_the_cpu():
    reached, calls, failures = set(), 0, []
    for name, (op, out, kinds) in ELEMENTWISE.items():
        for dtype in (torch.float32, torch.int32, torch.complex64):
            with metalops.debug.standins() as served:
                try:
                    results = call_both(op, out, kinds, dtype)
                except (RuntimeError, NotImplementedError) as error:
                    failures.append((name, dtype, str(error)[:200]))
                    continue
            entries = [entry for entry in served if entry.startswith("at::native::")]
            if results is None or not entries:
                continue
            calls += 1
            reached.update(entries)
            assert_close(
                results[1].cpu(), results[0], rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
            )
    # A Mac has no entry for some, as their operators have other kernels there.
    assert not [
        x for x in failures if "DispatchStub" in x[2] and "missing kernel for mps" not in x[2]
    ]
    assert reached <= set(_host.dispatch_stubs())
    assert len(reached) >= REACHED, sorted(set(_host.dispatch_stubs()) - reached)
    assert calls >= REACHED


@pytest.mark.parametrize(
    "name",
    ["uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "random_", "geometric_"],
)
def test_random_kernels_draw_from_the_generator_of_mps(name):
    op = getattr(aten, name).default
    options = [0.5] if name == "geometric_" else []

    def draw():
        x = torch.zeros(100, device="mps")
        return op.redispatch(CPU, x, *options).tolist()

    cpu = torch.get_rng_state()
    torch.mps.manual_seed(3)
    first, second = draw(), draw()
    torch.mps.manual_seed(3)
    assert draw() == first != second
    assert torch.equal(torch.get_rng_state(), cpu)


def test_a_stub_without_an_entry_says_so():
    """As on a Mac, where it has none either."""
    x = torch.rand(8, device="mps")
    with pytest.raises(RuntimeError, match="DispatchStub: missing kernel for mps"):
        aten.special_airy_ai.out.redispatch(CPU, x, out=torch.empty_like(x))
