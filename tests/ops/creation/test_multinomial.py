"""multinomial in the place of stock's, while the fix "multinomial" is on: kernels/creation/multinomial.metal."""

import metalops
import pytest
import torch
from metalops.testing.samples import FLOATS

from ..aten import kernels_of

by_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)
by_replacement = pytest.mark.parametrize("replacement", [False, True])


@pytest.fixture(autouse=True)
def ours():
    with metalops.enable_fixes("multinomial"):
        torch.manual_seed(0)
        yield


def sparse(rows, categories, *, dtype=torch.float32, every=3):
    """Weights, most of which are 0."""
    weights = torch.zeros(rows, categories)
    weights[:, 1::every] = torch.rand(rows, len(range(1, categories, every))) + 0.1
    return weights.to("mps", dtype)


@pytest.mark.sampled(2)
@by_float
@by_replacement
def test_a_category_of_probability_0_is_never_drawn(dtype, replacement):
    for categories in (4, 33, 257, 1000):
        weights = sparse(20, categories, dtype=dtype)
        count = 1 if categories == 4 else 11
        drawn = torch.multinomial(weights, count, replacement)
        assert drawn.shape == (20, count) and drawn.dtype == torch.int64
        assert (weights.gather(1, drawn) > 0).all()
        assert torch.multinomial(weights[0], 1, replacement).shape == (1,)


def test_one_category_among_many_is_found_at_every_place():
    """Also at the ends of chunks, and where the target is rounded up to the sum."""
    places = [0, 31, 255, 256, 257, 511, 600]
    weights = torch.zeros(len(places), 601)
    weights[range(len(places)), places] = 1e-30
    for count, replacement in ((1, False), (1, True), (50, True)):
        drawn = torch.multinomial(weights.to("mps"), count, replacement).cpu()
        assert torch.equal(drawn, torch.tensor(places)[:, None].expand(-1, count))


@pytest.mark.parametrize("count", [1, 5, 60, 65, 200])
def test_without_replacement_every_category_is_drawn_once(count):
    weights = sparse(7, 700)
    drawn = torch.multinomial(weights, count)
    assert (weights.gather(1, drawn) > 0).all()
    ordered = drawn.sort(1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()


@pytest.mark.parametrize("count", [5, 90])
def test_categories_of_probability_0_come_last(count):
    """Where there are too few others, as on the CPU."""
    weights = torch.zeros(3, 100)
    weights[:, 50:54] = 1
    drawn = torch.multinomial(weights.to("mps"), count).cpu()
    assert torch.equal(drawn[:, :4].sort(1).values, torch.arange(50, 54).expand(3, -1))
    assert all(len(set(row)) == count for row in drawn.tolist())


def _frequencies(weights, count, replacement):
    """Of the first of the drawn categories, of many equal rows."""
    drawn = torch.multinomial(weights.to("mps").expand(40_000, -1), count, replacement)
    return drawn[:, -1].cpu().bincount(minlength=weights.numel()) / 40_000


@by_replacement
def test_frequencies(replacement):
    weights = torch.tensor([0.5, 0.0, 2.0, 0.25, 1.25])
    chances = weights / weights.sum()
    torch.testing.assert_close(_frequencies(weights, 1, replacement), chances, rtol=0, atol=0.012)
    second = _frequencies(weights, 2, replacement)
    if replacement:
        expected = chances
    else:  # of the second one, whatever was the first
        expected = sum(
            chances[i] * torch.where(torch.arange(5) == i, 0.0, chances) / (1 - chances[i])
            for i in range(5)
        )
    torch.testing.assert_close(second, expected, rtol=0, atol=0.012)


def test_only_categories_that_exist_are_drawn():
    """136623"""
    weights = torch.tensor([4e-4, 2e-7, 6e-7, 3e-5, 5e-5, 6e-3, 0.99348587, 5e-8, 5e-4, 3e-7])
    drawn = torch.multinomial(weights.to("mps"), 10**6, True)
    assert drawn.min() >= 0 and drawn.max() <= 9


def test_many_draws_of_many_categories_have_the_right_frequencies():
    weights = torch.arange(1.0, 1025.0)
    drawn = torch.multinomial(weights.to("mps"), 200_000, replacement=True).cpu()
    counts = drawn.div(128, rounding_mode="floor").bincount(minlength=8) / 200_000
    expected = weights.view(8, 128).sum(1) / weights.sum()
    torch.testing.assert_close(counts, expected, rtol=0, atol=0.006)


def test_strided_weights_and_out(tmp_path):
    weights = torch.rand(6, 40)
    results = []
    for moved in (
        weights.to("mps"),
        weights.t().contiguous().to("mps").t(),
        torch.stack([weights, weights], -1).to("mps")[..., 1],
    ):
        torch.manual_seed(1)
        results.append(
            [torch.multinomial(moved, n, r) for n, r in ((1, False), (7, False), (7, True))]
        )
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    out = torch.empty(6, 14, dtype=torch.int64, device="mps")[:, ::2]
    torch.manual_seed(1)
    torch.multinomial(weights.to("mps"), 1)
    assert torch.multinomial(weights.to("mps"), 7, out=out) is out
    assert torch.equal(out, results[0][1])
    _, launched = kernels_of(lambda: torch.multinomial(weights.to("mps"), 7), tmp_path)
    assert [name for name in launched if name.startswith("multinomial")] == launched != []


def test_the_generator_repeats_and_advances():
    weights = torch.rand(4, 50, device="mps")
    generator = torch.Generator("mps").manual_seed(7)
    first = [torch.multinomial(weights, 3, r, generator=generator) for r in (False, True, False)]
    assert not torch.equal(first[0], first[2])
    generator.manual_seed(7)
    for replacement, expected in zip((False, True, False), first, strict=True):
        assert torch.equal(
            torch.multinomial(weights, 3, replacement, generator=generator), expected
        )


def test_errors_are_those_of_the_cpu():
    bad = "probability tensor contains either `inf`, `nan` or element < 0"
    for device in ("cpu", "mps"):
        x = torch.ones(2, 4, device=device)
        for call, message in (
            (lambda x=x: torch.multinomial(x[0, 0], 1), "prob_dist must be 1 or 2 dim"),
            (lambda x=x: torch.multinomial(x[None], 1), "prob_dist must be 1 or 2 dim"),
            (lambda x=x: torch.multinomial(x.int(), 1), "multinomial only supports floating-point dtypes for input, got: Int"),
            (lambda x=x: torch.multinomial(x, 0), "cannot sample n_sample <= 0 samples"),
            (lambda x=x: torch.multinomial(x, 5), "cannot sample n_sample > prob_dist.size.-1. samples without replacement"),
            (lambda x=x: torch.multinomial(x, 1, out=x.int()), "multinomial expects Long tensor out, got: Int"),
            (lambda x=x: torch.multinomial(x * torch.tensor([1.0, 1, 1, -1], device=x.device), 1), bad),
            (lambda x=x: torch.multinomial(x / 0, 2), bad),
            (lambda x=x: torch.multinomial(x * torch.nan, 1), bad),
            (lambda x=x: torch.multinomial(x * torch.tensor([[0.0], [1.0]], device=x.device), 2), "invalid multinomial distribution .sum of probabilities <= 0"),
            (lambda x=x: torch.multinomial(x * 0, 2, True), "invalid multinomial distribution"),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match=message):
                call()
    with pytest.raises(
        RuntimeError, match="Expected a 'mps' device type for generator but found 'cpu'"
    ):
        torch.multinomial(x, 1, generator=torch.Generator())


def test_no_rows():
    assert torch.multinomial(torch.ones(0, 4, device="mps"), 2).shape == (0, 2)


def test_torch_distributions():
    categorical = torch.distributions.Categorical(probs=torch.tensor([0.0, 0.3, 0.7], device="mps"))
    drawn = categorical.sample((10_000,))
    assert (drawn > 0).all() and abs(drawn.float().mean() - 1.7) < 0.03
