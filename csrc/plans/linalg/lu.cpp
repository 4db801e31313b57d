#include <csrc/plans/linalg/lu.h>
#include <csrc/plans/linalg/matrices.h>
#include <csrc/plans/linalg/triangular.h>
#include <kernels/linalg/lu.h>

#include <algorithm>
#include <array>

namespace metalops::plans {

namespace {

// Allocates memory for panels of some of the matrices. The leading dimension is padded, so that
// columns do not all fall into the same sets of a cache.
View panels_of(Plan& plan, const View& matrices) {
  constexpr int64_t kMostElements = int64_t{1} << 23;
  constexpr int64_t kColumns{kLuPanelColumns};
  constexpr int64_t kLine = 16;
  const auto ld = round_up(matrices.size(1), kLine) + kLine;
  const auto count = std::max<int64_t>(kMostElements / (kColumns * ld), 1);
  return plan.allocate(matrices.type, {std::min(count, matrices.size(0)), kColumns, ld});
}

// Factors panels (xGETF2) and writes them to `factors`, which may be `a`. a: (batch, rows,
// columns), of any strides; its rows and columns before `first` are not part of the panels. pivots:
// (batch, min(rows, columns)); infos: (batch), becomes the first step without a pivot, if zero
// before.
void factor_panels(Plan& plan, const View& factors, const View& a, const View& panels,
                   const View& pivots, const View& infos, int64_t first, bool is_pivoted) {
  constexpr uint64_t kRows = 2;           // that a thread should process, at least
  constexpr uint64_t kMostThreads = 512;  // the registers of a GPU do not suffice for more
  LuPanelParameters p{};
  p.input = {a.stride(0), a.stride(1), a.stride(2)};
  p.output = {factors.stride(0), factors.stride(1), factors.stride(2)};
  p.pivots_stride = pivots.stride(0);
  p.ld = static_cast<uint64_t>(panels.size(2));
  p.first = static_cast<uint32_t>(first);
  p.rows = static_cast<uint32_t>(a.size(1));
  p.columns = static_cast<uint32_t>(a.size(2));
  p.steps = static_cast<uint32_t>(pivots.size(1));
  p.is_pivoted = is_pivoted;
  uint64_t threads = 32;
  while (threads < kMostThreads && threads * kRows < p.rows) {
    threads *= 2;
  }
  for (int64_t matrix = 0; matrix < a.size(0); matrix += panels.size(0)) {
    const auto count = std::min(panels.size(0), a.size(0) - matrix);
    const auto own = [&](const View& x) { return x.narrow(0, matrix, count); };
    plan.launch("lu", Name("lu_panel_") + a.type, grid_of_threadgroups(count, threads),
                own(factors), panels, own(pivots), own(infos), own(a), p);
  }
}

// A panel whose rows are in registers of threads, `of_thread` each.
struct LuRows {
  Type type;
  int64_t of_thread;
  int64_t columns;
  const char* name;
};

// Returns how a panel of so many rows is held in registers; with no columns if it is too tall, and
// on a CPU, whose threads have few of them.
LuRows rows_in_registers(Type type, int64_t rows, const Device& device) {
  constexpr std::array<LuRows, 7> kSizes{{{Type::kFloat, 1, 32, "1_32_"},
                                          {Type::kFloat, 2, 32, "2_32_"},
                                          {Type::kFloat, 4, 16, "4_16_"},
                                          {Type::kFloat, 8, 8, "8_8_"},
                                          {Type::kComplexFloat, 1, 32, "1_32_"},
                                          {Type::kComplexFloat, 2, 16, "2_16_"},
                                          {Type::kComplexFloat, 4, 8, "4_8_"}}};
  const auto* const size = std::find_if(kSizes.begin(), kSizes.end(), [&](const LuRows& x) {
    return x.type == type && rows <= x.of_thread * int64_t{kMostLuThreads};
  });
  return device.a_thread_for_each_element || size == kSizes.end() ? LuRows{} : *size;
}

LuRowsParameters rows_parameters(const View& factors, const View& a, const View& pivots,
                                 int64_t first, bool is_pivoted) {
  const auto are_packs = [](const View& view) {
    const auto pack = pack_of(view);
    return view.stride(2) == 1 && view.begins_at_multiple_of(kRowPackBytes) &&
           view.stride(0) % pack == 0 && view.stride(1) % pack == 0 && view.size(2) % pack == 0;
  };
  return {{a.stride(0), a.stride(1), a.stride(2)},
          {factors.stride(0), factors.stride(1), factors.stride(2)},
          pivots.stride(0),
          to_uint32(a.size(0)),
          to_uint32(first),
          to_uint32(a.size(1)),
          to_uint32(a.size(2)),
          to_uint32(pivots.size(1)),
          is_pivoted,
          are_packs(a),
          are_packs(factors)};
}

// As factor_panels(), with the rows of panels in registers.
void factor_panel_rows(Plan& plan, const View& factors, const View& a, const View& pivots,
                       const View& infos, int64_t first, bool is_pivoted, const LuRows& held) {
  const auto threads = round_up(ceil_div(a.size(1), held.of_thread), 32);
  plan.launch("lu", Name("lu_panel_rows_") + held.name + a.type,
              grid_of_threadgroups(a.size(0), threads), factors, pivots, infos, a,
              rows_parameters(factors, a, pivots, first, is_pivoted));
}

// A batch of matrices that is being factored in place.
struct LuFactorisation {
  Plan& plan;
  const Device& device;
  View matrices;  // (batch, m, n) of padded_rows()
  View pivots;    // (batch, min(m, n))
  View infos;     // (batch), zeros
  View panels;    // of panels_of(); absent if none is needed
  bool is_pivoted;

  void run() const {
    const auto m = matrices.size(1);
    const auto n = matrices.size(2);
    // The columns that have pivots, rounded up to a whole vector.
    const auto square = std::min(n, round_up(m, pack_of(matrices)));
    factor(0, square);
    if (square < n) {
      const auto rest = matrices.narrow(2, square, n - square);
      lu_swap_rows(plan, device, rest, pivots, 0, m);
      solve_triangular(plan, matrices.narrow(2, 0, m), kLower, rest, device);
    }
  }

 private:
  static constexpr Triangle kLower{/*is_upper=*/false, /*is_unit=*/true};

  void factor(int64_t first, int64_t width) const {
    const auto m = matrices.size(1);
    const auto held = rows_in_registers(matrices.type, m - first, device);
    const auto most = held.columns > 0 ? held.columns : int64_t{kLuPanelColumns};
    if (width <= most) {
      const auto panel = matrices.narrow(1, first, m - first).narrow(2, first, width);
      const auto own = pivots.narrow(1, first, std::min(width, panel.size(1)));
      if (held.columns > 0) {
        factor_panel_rows(plan, panel, panel, own, infos, first, is_pivoted, held);
      } else {
        factor_panels(plan, panel, panel, panels, own, infos, first, is_pivoted);
      }
      return;
    }
    const auto half = round_up(width / 2, most);
    const auto middle = first + half;
    const auto others = width - half;
    const auto left = matrices.narrow(2, first, half);
    const auto right = matrices.narrow(2, middle, others);
    factor(first, half);
    lu_swap_rows(plan, device, right, pivots, first, half);
    const auto upper = right.narrow(1, first, half);
    solve_triangular(plan, left.narrow(1, first, half), kLower, upper, device);
    plan.product(right.narrow(1, middle, m - middle), left.narrow(1, middle, m - middle), upper,
                 /*alpha=*/-1, /*beta=*/1);
    factor(middle, others);
    lu_swap_rows(plan, device, left, pivots, middle, std::min(others, m - middle));
  }
};

// Factors matrices of at most kLuSimdgroup rows and columns, a simdgroup each.
void factor_by_simdgroups(Plan& plan, const LuFactor& call, const Device& device) {
  const auto a = plan.resolved(call.a);
  in_launches(a.size(0), steps_of_panel(a.size(1), a.size(2)), device,
              [&](int64_t first, int64_t count) {
                const auto own = [&](const View& x) { return x.narrow(0, first, count); };
                plan.launch("lu", Name("lu_simdgroup_32_") + a.type, grid_of_simdgroups(count),
                            own(call.factors), own(call.pivots), own(call.infos), own(a),
                            rows_parameters(own(call.factors), own(a), own(call.pivots),
                                            /*first=*/0, call.is_pivoted));
              });
}

}  // namespace

void lu_swap_rows(Plan& plan, const Device& device, const View& x, const View& pivots,
                  int64_t first, int64_t count, bool is_backward) {
  constexpr int64_t kMostThreads = 128;
  const auto on_cpu = device.a_thread_for_each_element;
  const auto pack = pack_of(x);
  const auto packs = ceil_div(x.size(2), pack);
  const auto threads = std::min(round_up(packs, 32), kMostThreads);
  const auto groups =
      packs == 0 ? 0 : ceil_div(packs, on_cpu ? threads : int64_t{kLuPermutedPacks});
  const LuSwapParameters p{x.stride(1) / pack,
                           x.stride(0) / pack,
                           pivots.size(1),
                           static_cast<uint32_t>(first),
                           static_cast<uint32_t>(count),
                           static_cast<uint32_t>(x.size(1)),
                           static_cast<uint32_t>(packs),
                           static_cast<uint32_t>(groups),
                           is_backward};
  plan.launch(
      "lu", on_cpu ? "lu_swap_rows" : "lu_permute_rows",
      grid_of_threadgroups(groups * x.size(0), on_cpu ? threads : int64_t{kLuPermutingThreads}), x,
      pivots, p, kErrors);
}

void lu_factor(Plan& plan, const LuFactor& call, const Device& device) {
  plan.fill(call.infos, 0);
  const auto& a = call.a;
  if (fits_lanes(a)) {
    small_matrices(plan, device, "lu", call.factors, a,
                   call.is_pivoted ? SmallMatricesMode::kPivoted : SmallMatricesMode::kPlain,
                   /*is_transposed=*/false, call.pivots, call.infos);
    return;
  }
  const auto held = rows_in_registers(a.type, a.size(1), device);
  if (std::max(a.size(1), a.size(2)) <= int64_t{kLuSimdgroup} && held.columns > 0) {
    factor_by_simdgroups(plan, call, device);
    return;
  }
  if (a.size(2) <= held.columns) {
    const auto given = plan.resolved(a);
    in_launches(a.size(0), steps_of_panel(a.size(1), a.size(2)), device,
                [&](int64_t first, int64_t count) {
                  const auto own = [&](const View& x) { return x.narrow(0, first, count); };
                  factor_panel_rows(plan, own(call.factors), own(given), own(call.pivots),
                                    own(call.infos), /*first=*/0, call.is_pivoted, held);
                });
    return;
  }
  if (a.size(2) <= int64_t{kLuPanelColumns} && held.columns == 0) {
    const auto given = plan.resolved(a);
    factor_panels(plan, call.factors, given, panels_of(plan, a), call.pivots, call.infos,
                  /*first=*/0, call.is_pivoted);
    return;
  }
  const auto matrices = padded_rows(plan, a);
  const auto panels = held.columns > 0 ? View{} : panels_of(plan, matrices);
  in_launches(
      a.size(0), steps_of_panel(a.size(1), a.size(2)), device, [&](int64_t first, int64_t count) {
        const auto own = [&](const View& x) { return x.narrow(0, first, count); };
        LuFactorisation{plan,   device,         own(matrices), own(call.pivots), own(call.infos),
                        panels, call.is_pivoted}
            .run();
      });
  plan.copy(call.factors, matrices);
}

void lu_solve(Plan& plan, const LuSolve& call, const Device& device) {
  const Triangle lower{/*is_upper=*/call.is_transposed, /*is_unit=*/true};
  const Triangle upper{/*is_upper=*/!call.is_transposed};
  const auto a = call.is_transposed ? call.factors.mT() : call.factors;
  const auto x = padded_rows(plan, call.b);
  if (call.is_transposed) {
    solve_triangular(plan, a, upper, x, device);
    solve_triangular(plan, a, lower, x, device);
    lu_swap_rows(plan, device, x, call.pivots, 0, call.pivots.size(1), /*is_backward=*/true);
  } else {
    lu_swap_rows(plan, device, x, call.pivots, 0, call.pivots.size(1));
    solve_triangular(plan, a, lower, x, device);
    solve_triangular(plan, a, upper, x, device);
  }
  plan.copy(call.x, x);
}

}  // namespace metalops::plans
