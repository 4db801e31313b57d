#include <csrc/plans/linalg/block_reflectors.h>
#include <csrc/plans/linalg/launch_lengths.h>
#include <csrc/plans/linalg/matrices.h>
#include <csrc/plans/linalg/qr.h>
#include <kernels/linalg/qr.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace metalops::plans {

namespace {

constexpr int64_t kQrWidth{kQrPanel};

// The most rows of a panel that is held in registers.
constexpr int64_t kMostQrRowsInRegisters = 128;

// Matrices, in here, are views of their transposes, (batch, n, m), contiguous.

void check_qr_sizes(const View& matrices) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  for (int32_t dim = 0; dim < matrices.dims; ++dim) {
    check_size(matrices.size(dim), kLargest, "qr: matrices with a side");
  }
}

// Returns the parameters of the panel that begins in row and column `first`.
QrParameters qr_parameters(const View& a, const View& taus, int64_t first, int64_t width,
                           bool with_block = false) {
  return {to_uint32(a.size(0)),
          to_uint32(a.size(2)),
          to_uint32(a.size(1)),
          to_uint32(taus.size(1)),
          to_uint32(first),
          to_uint32(width),
          to_uint32(round_up(width, 4)),
          with_block};
}

// Allocates the block reflector of a panel, for the rows from `first` on.
BlockReflector empty_block(Plan& plan, const View& a, int64_t first, int64_t width) {
  const auto padded = round_up(width, 4);
  return {plan.allocate(a.type, {a.size(0), padded, a.size(2) - first}),
          plan.allocate(a.type, {a.size(0), padded, padded})};
}

// Writes the block reflector of a panel (xLARFT).
void make_block(Plan& plan, const BlockReflector& block, const View& a, const View& taus,
                int64_t first, int64_t width) {
  const Plan::Scope scope(plan);
  const auto& [v, t] = block;
  const auto p = qr_parameters(a, taus, first, width);
  const auto gram = plan.allocate(t.type, {t.size(0), t.size(1), t.size(2)});
  plan.launch("qr", Name("qr_reflectors_") + a.type,
              grid_of_elements(v.size(2), p.padded, a.size(0)), v, a, p);
  plan.product(gram, v, v.mH(), /*alpha=*/1, /*beta=*/0);
  plan.launch("qr", Name("qr_larft_") + a.type, grid_of_elements(p.padded, a.size(0), 1), t, gram,
              taus, p);
}

// Returns the block reflector of a panel.
BlockReflector block_reflector(Plan& plan, const View& a, const View& taus, int64_t first,
                               int64_t width) {
  const auto block = empty_block(plan, a, first, width);
  make_block(plan, block, a, taus, first, width);
  return block;
}

// Factors a panel from row and column `first` on (xGEQR2) with kernels that hold it in registers of
// a thread or of lanes of a simdgroup.
void factor_small(Plan& plan, const View& a, const View& taus, int64_t first, int64_t width) {
  const auto rows = a.size(2) - first;
  const auto p = qr_parameters(a, taus, first, width);
  if (const auto size = std::max(rows, width); size <= int64_t{kQrThread}) {
    plan.launch("qr", Name("qr_thread_") + a.type + (size <= 4 ? "_4" : "_8"),
                grid_of_threads(a.size(0)), a, taus, p);
    return;
  }
  struct Size {
    int64_t columns;
    int64_t rows;
    const char* name;
  };
  // Ascending: in the first size that is large enough, most matrices share a simdgroup.
  constexpr std::array<Size, 6> kSizes{{{8, 32, "_8_32"},
                                        {16, 16, "_16_16"},
                                        {16, 64, "_16_64"},
                                        {32, 32, "_32_32"},
                                        {32, 64, "_32_64"},
                                        {32, kMostQrRowsInRegisters, "_32_128"}}};
  const auto* const size = std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& x) {
    return width <= x.columns && rows <= x.rows;
  });
  plan.launch("qr", Name("qr_small_") + a.type + size->name,
              grid_of_simdgroups(ceil_div(a.size(0) * size->columns, 32)), a, taus, p);
}

// A panel whose columns are in registers of simdgroups: `columns` of each simdgroup, and of each
// `packs` of a lane.
struct HeldPanel {
  Type type;
  int64_t columns;
  int64_t packs;
  const char* name;

  int64_t rows() const { return 4 * 32 * packs; }
  int64_t simdgroups(int64_t width) const { return ceil_div(round_up(width, 4), columns); }
};

// Returns how a panel is held in registers; with no columns if it is too large or small, and on a
// CPU, whose threads have few of them.
HeldPanel held_panel(Type type, int64_t rows, int64_t width, const Device& device) {
  constexpr std::array<HeldPanel, 7> kSizes{{{Type::kFloat, 2, 1, "2_1_"},
                                             {Type::kFloat, 2, 4, "2_4_"},
                                             {Type::kFloat, 2, 8, "2_8_"},
                                             {Type::kFloat, 1, 16, "1_16_"},
                                             {Type::kComplexFloat, 2, 1, "2_1_"},
                                             {Type::kComplexFloat, 2, 4, "2_4_"},
                                             {Type::kComplexFloat, 1, 8, "1_8_"}}};
  const auto* const size = std::find_if(kSizes.begin(), kSizes.end(), [&](const HeldPanel& x) {
    return x.type == type && rows > int64_t{kQrSmall} && rows <= x.rows() &&
           32 * x.simdgroups(width) <= int64_t{kMostQrThreads};
  });
  return device.a_thread_for_each_element || size == kSizes.end() ? HeldPanel{} : *size;
}

// block: becomes the panel's block reflector; not wanted if absent.
void factor_panel(Plan& plan, const Device& device, const View& a, const View& taus, int64_t first,
                  int64_t width, const BlockReflector& block) {
  constexpr int64_t kTall = 512;
  constexpr int64_t kNarrow = 8;
  // Multiplications that a threadgroup may make in one launch, lest a GPU's watchdog stop it.
  constexpr int64_t kMostProducts = int64_t{1} << 28;
  constexpr uint64_t kThreads = 256;
  const auto rows = a.size(2) - first;
  const bool is_short = rows < kTall || (width <= kNarrow && rows * width * width <= kMostProducts);
  if (const auto held = held_panel(a.type, rows, width, device); held.columns > 0) {
    plan.launch("qr", Name("qr_panel_held_") + held.name + a.type,
                grid_of_threadgroups(a.size(0), 32 * held.simdgroups(width)), a, taus, block.v,
                block.t, qr_parameters(a, taus, first, width, /*with_block=*/bool{block.v}));
    return;
  }
  if (rows <= kMostQrRowsInRegisters) {
    factor_small(plan, a, taus, first, width);
  } else if (is_short || width == 1) {
    plan.launch("qr", Name("qr_panel_") + a.type, grid_of_threadgroups(a.size(0), kThreads), a,
                taus, qr_parameters(a, taus, first, width));
  } else {
    // A single threadgroup takes long for many rows: the columns are halved.
    const auto half = width > kNarrow ? round_up(width / 2, 4) : width / 2;
    {
      const Plan::Scope scope(plan);
      const auto of_half = empty_block(plan, a, first, half);
      factor_panel(plan, device, a, taus, first, half, of_half);
      multiply_columns(plan, of_half, /*is_adjoint=*/true,
                       a.narrow(1, first + half, width - half).narrow(2, first, rows));
    }
    factor_panel(plan, device, a, taus, first + half, width - half, {});
  }
  if (block.v) {
    make_block(plan, block, a, taus, first, width);
  }
}

// The block reflectors of all panels of a matrix.
using Blocks = std::vector<BlockReflector>;

bool is_small_qr(const View& a) { return a.size(1) <= kQrWidth && a.size(2) <= int64_t{kQrSmall}; }

// Factors matrices in place. blocks: receives the block reflectors of those that are not small, if
// not null.
void factor(Plan& plan, const Device& device, const View& a, const View& taus,
            Blocks* blocks = nullptr) {
  if (a.numel() == 0) {
    return;
  }
  if (is_small_qr(a)) {
    factor_small(plan, a, taus, 0, a.size(1));
    return;
  }
  const auto steps = taus.size(1);
  if (blocks != nullptr) {  // before anything else leaves memory of other sizes
    for (int64_t first = 0; first < steps; first += kQrWidth) {
      blocks->push_back(empty_block(plan, a, first, std::min(kQrWidth, steps - first)));
    }
  }
  plan.fill(taus, 0);  // each panel writes its own
  for (int64_t first = 0; first < steps; first += kQrWidth) {
    const Plan::Scope scope(plan);
    const auto width = std::min(kQrWidth, steps - first);
    const auto behind = a.size(1) - first - width;
    const auto block = blocks != nullptr ? (*blocks)[first / kQrWidth]
                       : behind > 0      ? empty_block(plan, a, first, width)
                                         : BlockReflector{};
    factor_panel(plan, device, a, taus, first, width, block);
    if (behind > 0) {
      multiply_columns(plan, block, /*is_adjoint=*/true,
                       a.narrow(1, first + width, behind).narrow(2, first, a.size(2) - first));
    }
  }
}

// Calls part(own) for as many matrices as a launch may take, until all are done. own(x) is the part
// of x, a view with a's batch, that belongs to these matrices.
template <class Part>
void for_qr_parts(Plan& plan, const Device& device, const View& a, Part part) {
  in_launches(a.size(0), steps_of_panel(a.size(2), a.size(1)), device,
              [&](int64_t first, int64_t count) {
                const Plan::Scope scope(plan);
                part([&](const View& x) { return x ? x.narrow(0, first, count) : x; });
              });
}

// Returns true if vectors of so many elements are few enough for a thread each to apply the
// reflectors.
bool fits_qr_vectors(int64_t elements) { return elements <= int64_t{kQrSmall}; }

// Multiplies vectors of few elements with Q or Q^H: the rows of `others` if by_rows, else its
// columns.
void multiply_small(Plan& plan, const View& others, const View& a, const View& taus,
                    bool is_adjoint, bool by_rows, bool is_identity) {
  const auto size = a.size(2);
  const auto count = others.size(by_rows ? 2 : 1);
  const QrVectorsParameters p{to_uint32(count),
                              to_uint32(size),
                              to_uint32(a.size(1)),
                              to_uint32(taus.size(1)),
                              others.size(1) * others.size(2),
                              by_rows ? 1 : size,
                              by_rows ? count : 1,
                              to_uint32(a.size(0)),
                              is_adjoint,
                              by_rows,
                              is_identity};
  const auto* const name = size <= 4 ? "_4" : size <= 8 ? "_8" : size <= 16 ? "_16" : "_32";
  plan.launch("qr", Name("qr_vectors_") + a.type + name,
              grid_of_threads(a.size(0) * ceil_div(count, int64_t{kQrVectors})), others, a, taus,
              p);
}

// Forms the first columns of Q, as many as q has. blocks: those of the reflectors; none if they are
// small.
void form(Plan& plan, const View& q, const View& a, const View& taus, const Blocks& blocks) {
  if (q.numel() == 0) {
    return;
  }
  if (fits_qr_vectors(q.size(2)) && blocks.empty()) {
    multiply_small(plan, q, a, taus, /*is_adjoint=*/false, /*by_rows=*/false,
                   /*is_identity=*/true);
    return;
  }
  plan.fill_identity(q);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const auto rows = block->v.size(2);
    // The columns before the panel's are zero in these rows.
    const auto first = q.size(2) - rows;
    multiply_columns(plan, *block, /*is_adjoint=*/false,
                     q.narrow(1, first, q.size(1) - first).narrow(2, first, rows));
  }
}

}  // namespace

void qr_factor(Plan& plan, const QrFactor& call, const Device& device) {
  check_qr_sizes(call.a);
  plan.copy(call.factors, call.a);
  const auto a = call.factors.mT();
  for_qr_parts(plan, device, a, [&](auto own) { factor(plan, device, own(a), own(call.taus)); });
}

void qr_upper(Plan& plan, const View& r, const View& factors) {
  const QrUpperParameters p{r.stride(0), r.stride(1), r.stride(2),
                            static_cast<uint32_t>(factors.size(1)),
                            static_cast<uint32_t>(factors.size(2))};
  plan.launch("qr", Name("qr_upper_") + factors.type,
              grid_of_elements(r.size(1), r.size(2), r.size(0)), r, factors, p);
}

void qr_form(Plan& plan, const QrForm& call, const Device&) {
  check_qr_sizes(call.reflectors);
  const auto& taus = call.taus;
  const auto q = call.q.mT();
  if (q.numel() == 0) {
    return;
  }
  if (fits_qr_vectors(q.size(2))) {
    form(plan, q, plan.copied(call.reflectors.mT(), q.type), taus, {});
    return;
  }
  plan.copy(call.q, call.reflectors);
  Blocks blocks;
  for (int64_t first = 0; first < taus.size(1); first += kQrWidth) {
    const auto width = std::min(kQrWidth, taus.size(1) - first);
    blocks.push_back(block_reflector(plan, q, taus, first, width));
  }
  form(plan, q, q, taus, blocks);
}

void qr_multiply(Plan& plan, const QrMultiply& call, const Device&) {
  check_qr_sizes(call.reflectors);
  check_qr_sizes(call.c);
  const auto a = call.reflectors.mT();
  const auto c = call.c.mT();
  const auto& taus = call.taus;
  if (fits_qr_vectors(a.size(2))) {
    // x^T Q is the conjugate of Q^H conj(x).
    multiply_small(plan, c, a, taus, call.left == call.is_adjoint, /*by_rows=*/!call.left,
                   /*is_identity=*/false);
    return;
  }
  const auto panels = ceil_div(taus.size(1), kQrWidth);
  for (int64_t i = 0; i < panels; ++i) {
    const Plan::Scope scope(plan);
    const auto first = (call.left == call.is_adjoint ? i : panels - 1 - i) * kQrWidth;
    const auto rows = a.size(2) - first;
    const auto block =
        block_reflector(plan, a, taus, first, std::min(kQrWidth, taus.size(1) - first));
    if (call.left) {
      multiply_columns(plan, block, call.is_adjoint, c.narrow(2, first, rows));
    } else {
      multiply_rows(plan, block, call.is_adjoint, c.narrow(1, first, rows));
    }
  }
}

void qr(Plan& plan, const Qr& call, const Device& device) {
  check_qr_sizes(call.a);
  const auto a = plan.copied(call.a.mT(), call.a.type);
  const auto taus = plan.allocate(a.type, {a.size(0), std::min(a.size(1), a.size(2))});
  const auto q = call.q ? call.q.mT() : View{};
  for_qr_parts(plan, device, a, [&](auto own) {
    Blocks blocks;
    factor(plan, device, own(a), own(taus), q ? &blocks : nullptr);
    if (q) {
      form(plan, own(q), own(a), own(taus), blocks);
    }
  });
  qr_upper(plan, call.r, a.mT());
}

}  // namespace metalops::plans
