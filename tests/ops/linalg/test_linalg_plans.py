"""Launch plans of factorisations: what csrc/plans/linalg computes from sizes, and metalops.cuda.linalg, whose steps run here
on the software device."""

import math
import re
import struct
from pathlib import Path

import metalops
import pytest
import torch
from metalops import debug
from metalops.cuda import linalg
from metalops.ops._cuda import kernel_file
from metalops.ops._cuda import plan as plans

from tests.ops import direct

from ..aten import only_ours

H100 = plans.Limits(multiprocessors=132)
CPU = plans.Limits(a_thread_for_each_element=True)


def planned(name, limits=H100, **arguments):
    return plans.functions().plan(name, limits, arguments)[0]


def factoring(name, batch, m, n, dtype=torch.float32, limits=H100):
    a = torch.empty(batch, m, n, dtype=dtype)
    infos = torch.empty(batch, dtype=torch.int32)
    if name == "qr":
        k = min(m, n)
        q, r = (torch.empty(batch, *size, dtype=dtype).mT for size in ((k, m), (n, k)))
        return planned(name, limits, q=q, r=r, a=a)
    if name == "eig":
        complexes = torch.complex64
        values = torch.empty(batch, n, dtype=complexes)
        vectors = torch.empty(batch, n, n, dtype=complexes).mT
        return planned(name, limits, values=values, vectors=vectors, infos=infos, a=a)
    if name == "eigh":
        values, vectors = torch.empty(batch, n), torch.empty(batch, n, n, dtype=dtype).mT
        return planned(name, limits, values=values, vectors=vectors, infos=infos, a=a)
    if name == "svd":
        k = min(m, n)
        u, v_adjoint = (torch.empty(batch, *size, dtype=dtype).mT for size in ((k, m), (n, k)))
        values = torch.empty(batch, k)
        return planned(name, limits, u=u, values=values, v_adjoint=v_adjoint, infos=infos, a=a)
    if name == "eig_large_reduce":
        return planned(name, limits, infos=infos, a=a)
    if name == "cholesky":
        return planned(name, limits, factors=torch.empty_like(a), infos=infos, a=a)
    pivots = torch.empty(batch, min(m, n), dtype=torch.int32)
    return planned(name, limits, factors=torch.empty_like(a), pivots=pivots, infos=infos, a=a)


def kernels(plan):
    return [step.kernel for step in plan.steps if isinstance(step, plans.Launch)]


def test_the_kernel_is_chosen_by_the_size():
    assert kernels(factoring("cholesky", 1, 4, 4)) == ["cholesky_thread_4_float"]
    assert kernels(factoring("cholesky", 1, 8, 8)) == ["cholesky_thread_8_float"]
    assert kernels(factoring("lu_factor", 1, 16, 9, torch.complex64)) == ["lu_rows_16_float2"]
    assert kernels(factoring("lu_factor", 5, 300, 32)) == ["lu_panel_rows_1_32_float"]
    assert kernels(factoring("lu_factor", 5, 17, 32)) == ["lu_simdgroup_32_float"]
    assert kernels(factoring("cholesky", 3, 32, 32)) == ["cholesky_panel_32_float"]
    assert kernels(factoring("eig", 3, 5, 5)) == ["eig_thread_8_float"]
    assert kernels(factoring("eig", 3, 50, 50)) == ["eig_simdgroup_56_float"]
    assert kernels(factoring("eig", 3, 50, 50, torch.complex64)) == ["eig_device_64_float2"]
    assert kernels(factoring("qr", 9, 8, 5)) == ["qr_thread_float_8", "qr_vectors_float_8", "qr_upper_float"]  # fmt: skip
    assert kernels(factoring("qr", 9, 20, 7))[0] == "qr_small_float_8_32"
    assert kernels(factoring("qr", 1, 200, 8)) == ["qr_panel_held_2_4_float", "qr_upper_float"]
    assert "qr_panel_held_2_1_float2" in kernels(factoring("qr", 1, 200, 200, torch.complex64))


def test_a_cpu_holds_no_panels_in_registers():
    def on_a_cpu(*arguments):
        return kernels(factoring(*arguments, limits=CPU))

    assert on_a_cpu("lu_factor", 5, 300, 32) == on_a_cpu("lu_factor", 5, 17, 32) == ["lu_panel_float"]  # fmt: skip
    assert on_a_cpu("cholesky", 3, 32, 32) == ["cholesky_block_float", "cholesky_clear_lower_float"]
    assert on_a_cpu("qr", 1, 200, 8)[:2] == ["qr_panel_float", "qr_reflectors_float"]
    assert "qr_small_float2_32_128" in on_a_cpu("qr", 1, 200, 200, torch.complex64)


@pytest.mark.parametrize(
    ("dtype", "m", "held"),
    [
        *((torch.float32, *x) for x in ((512, "1_32"), (1024, "2_32"), (2048, "4_16"), (4096, "8_8"))),
        *((torch.complex64, *x) for x in ((512, "1_32"), (1024, "2_16"), (2048, "4_8"))),
    ],
)  # fmt: skip
def test_panels_are_as_wide_as_registers_suffice(dtype, m, held):
    found = kernels(factoring("lu_factor", 1, m, 32, dtype))
    name = "float2" if dtype.is_complex else "float"
    columns = int(held.split("_")[1])
    assert [x for x in found if "panel" in x] == [f"lu_panel_rows_{held}_{name}"] * (32 // columns)
    assert kernels(factoring("lu_factor", 1, 5000, 32, dtype)) == [f"lu_panel_{name}"]


def test_a_grid_holds_all_matrices():
    def grid(batch, n, name="lu_factor"):
        first = next(s for s in factoring(name, batch, n, n).steps if isinstance(s, plans.Launch))
        return first.grid, first.group

    assert grid(1000, 4) == ((1024,), None)
    assert grid(1000, 16) == ((4000, 1), (32, 1))  # four lanes each
    assert grid(7, 32) == ((7 * 32, 1), (32, 1))  # a simdgroup each
    assert grid(7, 1024) == ((7 * 512,), (512,))
    # The diagonal block, in each of 15 threadgroups, and 64 of the 960 columns right of it.
    assert grid(7, 1024, "cholesky") == ((7 * 15 * 128,), (128,))


def test_a_tall_panel_is_halved_until_a_threadgroup_is_fast():
    """Between the halves is the block reflector of the first one."""
    assert kernels(factoring("qr", 1, 5000, 16))[:5] == [
        "qr_panel_float",
        "qr_reflectors_float",
        "qr_larft_float",
        "qr_panel_float",
        "qr_reflectors_float",
    ]


def test_a_sweep_has_launches_for_its_windows_and_around_them():
    reduction = factoring("eig_large_reduce", 2, 100, 100)
    names = ("h", "scales", "exponents", "sweeps", "transformations", "shifts", "q")
    state = {name: torch.empty(r.sizes, dtype=r.dtype) for name, r in zip(names, reduction.results, strict=True)}  # fmt: skip
    infos = torch.empty(2, dtype=torch.int32)
    steps = ["eig_large_schur_finish_float", "eig_large_schur_begin_float"]
    for windows in (0, 3):
        found = kernels(planned("eig_large_sweep", **state, infos=infos, windows=windows))
        assert found[::2] == [*["eig_large_schur_chase_float"] * windows, *steps]
        assert set(found[1::2]) == {"eig_large_schur_apply_float"}


def test_a_reduction_asks_for_no_vectors_that_are_not_wanted():
    a, infos = torch.empty(1, 200, 200), torch.empty(1, dtype=torch.int32)
    with_q, without = (planned("eig_large_reduce", infos=infos, a=a, with_vectors=w) for w in (True, False))  # fmt: skip
    assert (len(with_q.results), len(without.results)) == (7, 6)
    assert len(kernels(without)) < len(kernels(with_q))


def test_panels_share_memory():
    def elements(**arguments):
        a = torch.empty(1, 2048, 2048)
        plan = planned("qr", r=torch.empty_like(a), a=a, **arguments)
        return sum(elements for _, elements in plan.memories) / a.numel()

    assert elements() < 1.1  # the factors, and one panel's
    # Those of all panels, which become shorter.
    assert elements(q=torch.empty(1, 2048, 2048).mT) < 1.6


@pytest.mark.parametrize("n", [40, 64, 100, 257, 1024])
@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "qr", "eig_large_reduce", "eigh", "svd"])
def test_every_step_stays_within_its_buffers(name, n):
    plan = factoring(name, 3, n, n)
    sizes = {plan.given + i: elements for i, (_, elements) in enumerate(plan.memories)}
    for step in plan.steps:
        places = step.arguments if isinstance(step, plans.Launch) else step
        for place in (x for x in places if isinstance(x, plans.Place)):
            last = sum((s - 1) * t for s, t in zip(place.sizes, place.strides, strict=True))
            if place.buffer in sizes and math.prod(place.sizes) > 0:
                assert 0 <= place.offset and place.offset + last < sizes[place.buffer]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "qr", "eig", "eigh", "svd"])
@pytest.mark.parametrize("n", [8, 16, 32, 100, pytest.param(200, marks=pytest.mark.nightly)])
def test_the_same_plan_runs_on_mps(name, n, tmp_path, taken_as_on):
    if name == "eig":
        n = min(n, 50)  # larger ones have several plans
    a = torch.eye(n).repeat(2, 1, 1).to("mps")
    functions = {
        "cholesky": torch.linalg.cholesky_ex,
        "lu_factor": torch.linalg.lu_factor_ex,
        "qr": torch.linalg.qr,
        "eigh": torch.linalg.eigh,
        "svd": torch.linalg.svd,
        "eig": torch.linalg.eig,
    }
    with debug.capture(tmp_path / "x.trace", gpu=taken_as_on == "gpu") as trace:
        functions[name](a)
    families = (
        "cholesky",
        "lu_",
        "triangular",
        "qr_",
        "svd_",
        "blocked_reduction_",
        "eig_",
        "eigh_",
    )
    launched = [x.kernel for x in trace.launches if x.kernel.startswith(families)]
    limits = CPU if taken_as_on == "cpu" else plans.Limits()
    assert launched == kernels(factoring(name, 2, n, n, limits=limits))


# ---- metalops.cuda.linalg --------------------------------------------------------------------------


@pytest.fixture
def on_the_software_device(monkeypatch):
    """Runs the steps by the kernels that were built for mps."""
    libraries = {}
    errors = torch.zeros(1 << 16, dtype=torch.uint8, device="mps")

    def launch(step, values):
        if step.family not in libraries:
            libraries[step.family] = direct.kernels(step.family)
        arguments = []
        for value in values:
            if isinstance(value, bytes):
                value = direct.as_bytes(f"{len(value)}s", value)
            # Absent ones must be bound, too.
            arguments.append(errors if value is plans.ERRORS or value is None else value)
        getattr(libraries[step.family], step.kernel)(
            *arguments, threads=step.grid, group_size=step.group
        )

    def run(name, like, **arguments):
        plan, tensors = plans.functions().plan(name, H100, arguments)
        return plans.execute(plan, tensors, like, launch)

    monkeypatch.setattr(linalg, "_DEVICE", "mps")
    monkeypatch.setattr(plans, "run", run)
    assert struct.calcsize("P") == 8 and metalops._is_software


@pytest.fixture
def as_on_a_gpu():
    """torch.linalg on mps has the kernels of a GPU, too."""
    from metalops import _host

    before = _host.set_elementwise_flavour("gpu", "gpu")
    yield
    _host.set_elementwise_flavour(*before)


SIZES = [
    (2, 3),
    (8, 8),
    (2, 16, 16),
    (3, 32, 31),
    (30, 20),
    (40, 70),
    (2, 100, 100),
    (0, 4, 4),
    (3, 0, 0),
]


def matrices(size, dtype):
    torch.manual_seed(0)
    return torch.randn(size, dtype=dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lu(on_the_software_device, size, dtype):
    a = matrices(size, dtype)
    factors, pivots, info = linalg.lu_factor_ex(a.to("mps"))
    expected = torch.linalg.lu_factor_ex(a)
    assert (factors.shape, pivots.shape, info.shape) == tuple(x.shape for x in expected)
    assert factors.stride() == expected.LU.stride() and not info.cpu().any()
    wide = torch.complex128 if dtype.is_complex else torch.float64
    if a.numel() > 0:
        p, lower, upper = torch.lu_unpack(factors.cpu().to(wide), pivots.cpu())
        torch.testing.assert_close(p @ lower @ upper, a.to(wide), atol=2e-5, rtol=0)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("size", [*SIZES, (2, 3, 70, 40), (600, 12), (50, 0)], ids=str)
def test_qr(on_the_software_device, size, mode, dtype):
    a = matrices(size, dtype)
    q, r = linalg.qr(a.to("mps"), mode)
    expected = torch.linalg.qr(a, mode)
    assert [(x.shape, x.stride()) for x in (q, r)] == [(x.shape, x.stride()) for x in expected]
    # On mps, because MKL may leave the last row of complex matrices as it is.
    torch.testing.assert_close((q, r), tuple(torch.linalg.qr(a.to("mps"), mode)), atol=1e-5, rtol=1e-5)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("size", [(2, 3, 4, 4), (16, 16), (2, 50, 50), (2, 70, 70), (0, 4, 4), (3, 0, 0)], ids=str)  # fmt: skip
def test_eig(on_the_software_device, size, dtype):
    a = matrices(size, dtype)
    values, vectors = linalg.eig(a.to("mps"))
    expected = torch.linalg.eig(a)
    assert (values.shape, values.stride()) == (expected[0].shape, expected[0].stride())
    assert (vectors.shape, vectors.stride()) == (expected[1].shape, expected[1].stride())
    values, vectors = values.cpu(), vectors.cpu()
    torch.testing.assert_close((a + 0j) @ vectors, vectors * values[..., None, :], atol=1e-4, rtol=1e-4)  # fmt: skip
    torch.testing.assert_close(linalg.eigvals(a.to("mps")).cpu().sum(-1), a.diagonal(dim1=-2, dim2=-1).sum(-1) + 0j, atol=1e-3, rtol=1e-4)  # fmt: skip


@pytest.mark.parametrize("n", [5, 70])
def test_a_matrix_that_is_not_finite_has_no_eigenvalues(on_the_software_device, n):
    a = torch.eye(n).repeat(2, 1, 1)
    a[1, 2, 3] = torch.nan
    for function, name in ((linalg.eig, "eig"), (linalg.eigvals, "eigvals")):
        with pytest.raises(RuntimeError, match=f"torch.linalg.{name}: input tensor should not"):
            function(a.to("mps"))


@only_ours("aten::_linalg_eigh.eigenvalues")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 4), (16, 16), (2, 50, 50), (2, 70, 70), (0, 4, 4), (3, 0, 0)], ids=str)  # fmt: skip
def test_eigh(on_the_software_device, size, upper, dtype):
    a = matrices(size, dtype)
    a, uplo = (a + a.mH).to("mps"), "u" if upper else "L"
    found, expected = linalg.eigh(a, uplo), torch.linalg.eigh(a, UPLO=uplo)
    for ours, theirs in zip((*found, linalg.eigvalsh(a, uplo)), (*expected, torch.linalg.eigvalsh(a, UPLO=uplo)), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        assert ours.stride() == theirs.stride()


@pytest.mark.sampled(10)
@only_ours("aten::_linalg_svd.U")
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("size", [*SIZES, (2, 3, 70, 40), (70, 70), (600, 12), (50, 0)], ids=str)
def test_svd(on_the_software_device, as_on_a_gpu, size, full, dtype):
    """Vectors have the same signs, too, which rounding errors decide."""
    a = matrices(size, dtype).to("mps")
    found, expected = linalg.svd(a, full), torch.linalg.svd(a, full)
    for ours, theirs in zip((*found, linalg.svdvals(a)), (*expected, torch.linalg.svdvals(a)), strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("n", [5, 70])
def test_a_matrix_that_is_not_finite_has_no_spectrum(on_the_software_device, n):
    a = torch.eye(n).repeat(2, 1, 1)
    a[1, 2, 2] = torch.nan
    for function, name in ((linalg.eigh, "eigh"), (linalg.eigvalsh, "eigh"), (linalg.svd, "svd")):
        with pytest.raises(torch.linalg.LinAlgError, match=rf"linalg.{name}: \(Batch element 1\)"):
            function(a.to("mps"))
    with pytest.raises(RuntimeError, match="Expected UPLO argument to be 'L' or 'U', but got x"):
        linalg.eigh(a.to("mps"), "x")


@pytest.mark.parametrize("subject", ["attention", "linalg", "quantized"])
def test_kernels_for_cuda_do_without_what_older_versions_of_torch_lack(subject):
    """metalops.cuda works with a torch other than the one that metalops was built for."""
    for path in (Path(kernel_file.root()) / "kernels" / subject).rglob("*.*"):
        newer = re.findall(r"c10::metal::(?:ceil_div|round_up)\b", path.read_text())
        assert not newer, path


def test_numbers_of_eig_are_those_of_the_headers():
    folder = Path(kernel_file.root()) / "kernels/linalg"
    body = re.search(r"struct SchurSweeps \{(.*?)\};", (folder / "eig_large.h").read_text(), re.DOTALL)[1]  # fmt: skip
    fields = re.findall(r"int32_t (\w+);", body)
    assert (fields[linalg._HIGH], fields[linalg._WINDOWS]) == ("high", "windows")
    text = (folder / "eig.h").read_text()
    for name, value in (("kEigNotFinite", linalg._NOT_FINITE), ("kMostOfEigDevice", linalg._MOST_OF_EIG)):  # fmt: skip
        assert int(re.search(rf"{name} = (-?\d+)", text)[1]) == value


def test_modes_of_qr(on_the_software_device):
    with pytest.raises(RuntimeError, match="unrecognized mode 'full'"):
        linalg.qr(torch.eye(3, device="mps"), "full")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [1, 8, 16, 33, 130])
def test_cholesky(on_the_software_device, n, upper, dtype):
    a = matrices((2, n, n), dtype)
    a = a @ a.mH / n + torch.eye(n)
    factor = linalg.cholesky(a.to("mps"), upper=upper).cpu()
    torch.testing.assert_close(factor, torch.linalg.cholesky(a, upper=upper), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("n", [3, 20, 90])
def test_solutions(on_the_software_device, n, adjoint, dtype):
    a, b = matrices((2, 1, n, n), dtype) + n * torch.eye(n), matrices((3, n, 5), dtype)
    factors = linalg.lu_factor(a.to("mps"))
    x = linalg.lu_solve(*factors, b.to("mps"), adjoint=adjoint).cpu()
    torch.testing.assert_close((a.mH if adjoint else a) @ x, b.expand(2, 3, n, 5), atol=1e-4, rtol=1e-4)  # fmt: skip
    vector = linalg.solve(a.to("mps"), b[0, :, 0].to("mps")).cpu()
    torch.testing.assert_close(vector, torch.linalg.solve(a, b[0, :, 0]), atol=1e-4, rtol=1e-4)


def test_pivots_of_any_strides_and_broadcast_matrices(on_the_software_device):
    a, b = (
        matrices((20, 20), torch.float32) + 20 * torch.eye(20),
        matrices((3, 20, 2), torch.float32),
    )
    LU, pivots = linalg.lu_factor(a.to("mps"))
    strided = torch.stack([pivots, pivots], 1)[:, 0]
    for given in (pivots, strided):
        x = linalg.lu_solve(LU, given, b.to("mps")).cpu()
        torch.testing.assert_close(a @ x, b, atol=1e-4, rtol=1e-4)


def test_there_are_no_derivatives(on_the_software_device):
    a = torch.eye(20, device="mps", requires_grad=True)
    for call in (
        linalg.cholesky,
        linalg.lu_factor,
        linalg.qr,
        linalg.eigvals,
        lambda a: linalg.solve(a, a),
    ):
        with pytest.raises(RuntimeError, match="A requires grad"):
            call(a)
    with pytest.raises(RuntimeError, match="B requires grad"):
        linalg.solve(a.detach(), a)
    with torch.no_grad():
        assert linalg.cholesky(a).shape == (20, 20)


def test_what_has_no_factors_is_an_error(on_the_software_device):
    zero = torch.zeros(2, 20, 20, device="mps")
    with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 0.*minor of order 1 "):
        linalg.cholesky(zero)
    with pytest.raises(RuntimeError, match=r"U\[1,1\] is zero"):
        linalg.lu_factor(zero)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        linalg.solve(zero, zero)


def test_arguments_are_checked():
    with pytest.raises(RuntimeError, match="must be on a CUDA device, but is on cpu"):
        linalg.cholesky(torch.eye(3))
    with pytest.raises(RuntimeError, match="must be float32 or complex64, but is torch.float64"):
        linalg.lu_factor(torch.eye(3, dtype=torch.float64))
    for function in (linalg.lu_factor, linalg.eig, linalg.eigvals, linalg.eigh, linalg.eigvalsh, linalg.svd):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"at least 2 dimensions, but has shape \[3\]"):
            function(torch.ones(3))


def test_square_matrices_are_asked_for(on_the_software_device):
    with pytest.raises(RuntimeError, match="they are 2 by 3 matrices"):
        linalg.cholesky(torch.ones(2, 3, device="mps"))
    with pytest.raises(RuntimeError, match="linalg.eigvals: .*they are 2 by 3 matrices"):
        linalg.eigvals(torch.ones(2, 3, device="mps"))
    factors = linalg.lu_factor(torch.eye(3, device="mps"))
    with pytest.raises(RuntimeError, match=r"B must be matrices of 3 rows.*has shape \[2, 2\]"):
        linalg.lu_solve(*factors, torch.ones(2, 2, device="mps"))
    with pytest.raises(RuntimeError, match=r"pivots must be int32 of shape \[3\]"):
        linalg.lu_solve(factors.LU, factors.pivots[:2], torch.ones(3, 2, device="mps"))
