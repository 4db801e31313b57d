"""Sizes of groups that CUDA launches, which need no GPU to be chosen."""

import math
import random

import pytest
from metalops.cuda.function import MOST_OF_A_DIMENSION, USUAL_GROUP, group_within


@pytest.mark.parametrize("most", [1, 32, USUAL_GROUP, 1024])
def test_groups_are_within_the_grid_and_the_limits_of_each_dimension(most):
    draw = random.Random(most)
    for _ in range(200):
        grid = tuple(draw.choice((1, 2, 63, 65, 100, 2000)) for _ in range(draw.randint(1, 3)))
        group = group_within(grid, most)
        assert len(group) == len(grid)
        assert 1 <= math.prod(group) <= most
        assert all(
            n <= size and n <= limit for n, size, limit in zip(group, grid, MOST_OF_A_DIMENSION)
        )
