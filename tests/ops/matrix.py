"""The matrix that every operator of ours goes through: layouts, shapes, dtypes, out=, in place, gradients.

A test file of a family inherits from Matrix and gives it the operators.
"""

import pytest
import torch
from metalops.testing import (
    Operator,
    check_forward,
    check_gradient,
    check_inplace,
    check_out,
    make,
    no_standins,
)
from metalops.testing.samples import FLOATS, INTEGERS

by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


class Matrix:
    operators: tuple[Operator, ...]

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
    def test_values_in_every_layout_shape_and_promotion(self, operator, dtype):
        if dtype not in operator.dtypes:
            with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
                operator.function(*(x.to("mps") for x in operator.simple_case(dtype).args))
            return
        for case in operator.cases(dtype):
            check_forward(operator.function, operator.reference, case, "mps", name=operator.name)

    @pytest.mark.sampled(2)
    @pytest.mark.full
    @by_dtype
    def test_gradients_in_every_layout_and_promotion(self, operator, dtype):
        cases = [case for case in operator.cases(dtype) if case.precise]
        # The layout of operands does not depend on their size in memory: half precision needs fewer cases.
        for case in cases[:: 1 if dtype == torch.float32 else 4]:
            check_gradient(operator.function, operator.reference, case, "mps", name=operator.name)

    @by_dtype
    def test_out(self, operator, dtype):
        check_out(
            operator.function,
            operator.reference,
            operator.simple_case(dtype),
            "mps",
            name=operator.name,
        )

    @by_dtype
    def test_in_place(self, operator, dtype):
        if operator.halving:
            assert operator.inplace is None
            return
        case = operator.simple_case(dtype)
        check_inplace(operator.inplace, operator.reference, case, "mps", name=operator.name)

    def test_in_place_of_integers_that_become_floating_point_is_refused(self, operator):
        if operator.halving:
            assert operator.inplace is None
            return
        args = [x.to("mps") for x in operator.simple_case(torch.int32).args]
        if operator.integers_stay:
            assert operator.inplace(*args) is args[0]
            return
        with pytest.raises(RuntimeError, match="result type Float can't be cast to"):
            operator.inplace(*args, **operator.arguments[-1])

    def test_gradient_through_in_place(self, operator):
        if operator.halving:
            assert operator.inplace is None
            return

        def through_inplace(first, *others, **arguments):
            changed = first * 1
            operator.inplace(changed, *others, **arguments)
            return changed

        case = operator.simple_case(torch.float32)
        check_gradient(through_inplace, operator.reference, case, "mps", name=operator.name)

    def test_forward_and_backward_without_stand_ins(self, operator):
        args = [x.to("mps").requires_grad_() for x in operator.simple_case(torch.float32).args]
        arguments = operator.arguments[-1]
        cotangent = make((4, 6), torch.float32).to("mps")
        with no_standins():
            result = operator.function(*args, **arguments)
            torch.autograd.grad(result, args, cotangent)
            operator.function(*(x.detach() for x in args), **arguments, out=result.detach())
            if operator.inplace:
                operator.inplace(*(x.detach() for x in args), **arguments)

    def test_channels_last_stays(self, operator):
        shape = (2, 4, 3, 8)
        args = [
            operator.sample(*shape, dtype=torch.float32, seed=i).to(
                "mps", memory_format=torch.channels_last
            )
            for i in range(operator.operands)
        ]
        result = operator.function(*args, **operator.arguments[-1])
        assert result.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.sampled(6)
    def test_default_dtype_decides_what_integers_become(self, operator):
        if operator.integers_stay:
            assert operator.function(*self._integers(operator)).dtype == torch.int32
            return
        try:
            torch.set_default_dtype(torch.float16)
            result = operator.function(*self._integers(operator), **operator.arguments[-1])
        finally:
            torch.set_default_dtype(torch.float32)
        assert result.dtype == torch.float16
        expected = operator.function(*self._integers(operator), **operator.arguments[-1])
        torch.testing.assert_close(result, expected.half())

    @staticmethod
    def _integers(operator):
        return [x.to("mps") for x in operator.simple_case(torch.int32).args]
