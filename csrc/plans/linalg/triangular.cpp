#include <csrc/plans/linalg/matrices.h>
#include <csrc/plans/linalg/triangular.h>
#include <kernels/linalg/triangular.h>

#include <algorithm>
#include <utility>

namespace metalops::plans {

namespace {

// Returns the most rows of a triangle that a kernel solves.
int64_t most_rows(Type type, const Device& device) {
  return int64_t{device.a_thread_for_each_element ? kTriangleRows
                 : type == Type::kFloat           ? kTriangleColumnRows
                                                  : kComplexTriangleColumnRows};
}

void launch_triangle(Plan& plan, const View& a, Triangle triangle, const View& x,
                     const Device& device) {
  constexpr uint32_t kThreads = 32;
  const auto n = a.size(1);
  const auto pack = pack_of(x);
  TriangularParameters p{};
  p.matrix_row_stride = a.stride(1);
  p.matrix_column_stride = a.stride(2);
  p.matrix_batch_stride = a.stride(0);
  p.columns_row_stride = x.stride(1) / pack;
  p.columns_batch_stride = x.stride(0) / pack;
  if (triangle.is_upper) {
    p.matrix_start = (n - 1) * (p.matrix_row_stride + p.matrix_column_stride);
    p.columns_start = (n - 1) * p.columns_row_stride;
    p.matrix_row_stride *= -1;
    p.matrix_column_stride *= -1;
    p.columns_row_stride *= -1;
  }
  p.size = static_cast<uint32_t>(n);
  p.matrices = static_cast<uint32_t>(x.size(0));
  p.packs = static_cast<uint32_t>(ceil_div(x.size(2), pack));
  p.group_packs = std::min(p.packs, kThreads);
  p.group_matrices = std::min(
      {p.matrices, kThreads / p.group_packs, kTriangleElements / elements_of_triangle(p.size)});
  p.is_unit = triangle.is_unit;
  p.is_conjugated = a.is_conj;
  if (!device.a_thread_for_each_element) {
    const auto columns_groups = ceil_div(p.packs * pack, int64_t{kTriangleThreads});
    plan.launch("triangular", Name("triangular_columns_") + (n <= 32 ? "32_" : "64_") + a.type,
                grid_of_threadgroups(columns_groups * x.size(0), kTriangleThreads), x, a, p);
    return;
  }
  const auto groups = ceil_div(p.packs, p.group_packs) * ceil_div(p.matrices, p.group_matrices);
  plan.launch("triangular", Name("triangular_solve_") + a.type,
              grid_of_threadgroups(groups, kThreads), x, a, p);
}

}  // namespace

void solve_triangular(Plan& plan, const View& a, Triangle triangle, const View& x,
                      const Device& device) {
  const auto n = a.size(1);
  if (x.numel() == 0) {
    return;
  }
  const auto most = most_rows(a.type, device);
  if (n <= most) {
    launch_triangle(plan, a, triangle, x, device);
    return;
  }
  const auto half = round_up(n / 2, device.a_thread_for_each_element ? 32 : most);
  const auto part = [&](bool is_later) {
    return std::pair(is_later ? half : 0, is_later ? n - half : half);
  };
  const auto [first, firsts] = part(triangle.is_upper);
  const auto [second, seconds] = part(!triangle.is_upper);
  const auto known = x.narrow(1, first, firsts);
  const auto rest = x.narrow(1, second, seconds);
  const auto rows = a.narrow(1, second, seconds);
  solve_triangular(plan, a.narrow(1, first, firsts).narrow(2, first, firsts), triangle, known,
                   device);
  plan.product(rest, rows.narrow(2, first, firsts), known, /*alpha=*/-1, /*beta=*/1);
  solve_triangular(plan, rows.narrow(2, second, seconds), triangle, rest, device);
}

}  // namespace metalops::plans
