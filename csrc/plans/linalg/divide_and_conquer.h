// Shared parts of the plans of D&C methods: how the columns of a matrix are divided into
// subproblems, the launches of their merges, and the products of their vectors.
#pragma once
#include <csrc/plans/plan.h>

#include <algorithm>
#include <cstdint>

namespace metalops::plans {

// The subproblems of the columns of a matrix and its padding: 2^k regions of `leaf` columns each,
// at most 32, which are halved into blocks of a power of two, and the rest.
struct Regions {
  explicit Regions(int64_t columns) : count(1) {
    constexpr int64_t kMostOfLeaf = 32;
    while (ceil_div(columns, count) > kMostOfLeaf) {
      count *= 2;
    }
    leaf = ceil_div(columns, count);
  }

  int64_t columns() const { return leaf * count; }

  // Calls merge(block, region) for each level of merges, from single columns on: blocks of so many
  // columns are merged in regions of so many columns.
  template <class Merge>
  void for_each_level(Merge merge) const {
    for (int64_t block = 1; block < leaf; block = std::min(2 * block, leaf)) {
      merge(block, leaf);
    }
    for (auto block = leaf; block < columns(); block *= 2) {
      merge(block, 2 * block);
    }
  }

  int64_t leaf;
  int64_t count;
};

// Merges blocks of one column on, level by level, by the kernels of a family. values: (batch,
// columns), those of the blocks, which become those of the matrices. value_count: how many are no
// padding. sort_data, deflate_data: what the kernels FAMILY_sort and FAMILY_deflate take besides.
// sides: the kinds of vectors. Returns the vectors, if they are wanted: (sides * batch, columns,
// columns), one after the other.
View merge_blocks(Plan& plan, const char* family, const Regions& regions, const View& values,
                  int64_t value_count, const View& sort_data, const View& deflate_data,
                  int64_t sides, bool with_vectors);

}  // namespace metalops::plans
