"""Programs for torch.compile in which the result of a reduction is written to a tensor that the function was given.

`python -m tests.metal.inductor_reductions` runs all of them, in an hour; with numbers of cases, these.
"""

import argparse
import itertools
from dataclasses import dataclass

import metalops  # noqa: F401
import torch

# From the rows of a matrix to one number each.
REDUCTIONS = {
    "sum": lambda x: x.sum(1),
    "count": lambda x: (x > 0).sum(1),
    "mean": lambda x: x.mean(1),
    "product": lambda x: (1 + 0.1 * x).prod(1),
    "largest": lambda x: x.amax(1),
    "smallest": lambda x: x.amin(1),
    "place of the largest": lambda x: x.argmax(1),
    "place of the smallest": lambda x: x.argmin(1),
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -2).all(1),
    "variance": lambda x: x.var(1),
    "deviation and mean": lambda x: x.std(1) + x.mean(1),
    "norm": lambda x: x.norm(dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "two reductions": lambda x: x.sum(1) * x.amax(1),
    "a reduction of a reduction": lambda x: (x - x.mean(1, keepdim=True)).square().sum(1),
    "bfloat16": lambda x: x.bfloat16().sum(1).float(),
}


def rows(c):
    return torch.arange(c.shape[0], device=c.device)


# How they come into a vector.
WRITES = {
    "add_": lambda c, r: c.add_(r),
    "add_ of a part": lambda c, r: c[1:].sub_(r[1:].float()),
    "mul_, add_": lambda c, r: c.mul_(0.9).add_(r, alpha=0.1),
    "lerp_": lambda c, r: c.lerp_(r.float(), 0.25),
    "addcmul_": lambda c, r: c.addcmul_(r.float(), c),
    "copy_": lambda c, r: c.copy_(2 * c + r),
    "copy_ alone": lambda c, r: c.copy_(r),
    "out=": lambda c, r: torch.add(c, r.float(), out=c),
    "where": lambda c, r: c.copy_(torch.where(r > 0, c + r, c - 1)),
    "masked_fill_": lambda c, r: c.masked_fill_(r > 0, 7.0),
    "index": lambda c, r: c.__setitem__(rows(c).flip(0), c + r),
    "index_add_": lambda c, r: c.index_add_(0, rows(c) // 2, r.float()),
    "index_put_": lambda c, r: c.index_put_((rows(c) // 2,), r.float(), accumulate=True),
    "scatter_add_": lambda c, r: c.scatter_add_(0, rows(c) // 2, r.float()),
}
# What is made of the vector afterwards.
USES = {
    "nothing": lambda c, x: x[:, 0] + 1,
    "its rows": lambda c, x: x * c[:, None] - x.amin(1, keepdim=True),
    "in place": lambda c, x: x.sub_(c[:, None]).sum(1),
}
# Of one loop over a group's threads, and of several.
WIDTHS = (9, 200, 1024, 1500)


@dataclass(frozen=True)
class Case:
    width: int
    reduction: str
    write: str
    use: str

    def run(self, c, x):
        WRITES[self.write](c, REDUCTIONS[self.reduction](x))
        return USES[self.use](c, x)


ALL = [Case(*names) for names in itertools.product(WIDTHS, REDUCTIONS, WRITES, USES)]


def some(width, turn):
    """Cases of one width in which all writes occur; in three turns with all uses, and all reductions do."""
    return [
        Case(width, pick(REDUCTIONS, i + 5 * turn), write, pick(USES, i + turn))
        for i, write in enumerate(WRITES)
    ]


def pick(names, i):
    return list(names)[i % len(names)]


def differences(cases):
    """Compiles the cases as one function; (case, what differs from eager execution) of those that do."""
    generator = torch.Generator().manual_seed(1)

    def function(cs, xs):
        return [case.run(c, x) for case, c, x in zip(cases, cs, xs, strict=True)]

    cs = [torch.rand(4, generator=generator).to("mps") for _ in cases]
    xs = [torch.randn(4, case.width, generator=generator).to("mps") for case in cases]
    eager = [x.clone() for x in cs], [x.clone() for x in xs]
    expected = function(*eager)
    results = torch.compile(function, fullgraph=True)(cs, xs)
    found = []
    for i, case in enumerate(cases):
        actual = cs[i], xs[i], results[i]
        try:
            # A compiled function rounds to bfloat16 at its end only.
            tolerance = 1e-2 if case.reduction == "bfloat16" else 1e-3
            torch.testing.assert_close(
                actual, (eager[0][i], eager[1][i], expected[i]), rtol=tolerance, atol=tolerance
            )
        except AssertionError as error:
            found.append((case, str(error)))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, default=range(len(ALL)))
    cases = [ALL[i] for i in parser.parse_args().numbers]
    wrong = 0
    for start in range(0, len(cases), 8):
        torch._dynamo.reset()
        for case, error in differences(cases[start : start + 8]):
            wrong += 1
            print(f"{ALL.index(case)}: {case}\n{error}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
