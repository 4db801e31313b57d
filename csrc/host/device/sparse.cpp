// Registration of sparse COO operators, with a Mac's checks and coalescing.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <device/sparse.h>
#include <device/stand_in.h>
#include <torch/library.h>
#include <torch_internals.h>

#include <memory>

namespace metalops::device {
namespace {

// Calls the CPU kernel, which in torch is the same for every device, with mps tensors.
template <c10::DispatchKey cpu_key>
void common_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(cpu_key), stack);
}

template <c10::DispatchKey cpu_key>
torch::CppFunction common() {
  return torch::CppFunction::makeFromBoxedFunction<&common_kernel<cpu_key>>();
}

// Operators on strided tensors.
TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("_to_sparse", common<c10::DispatchKey::CPU>());
  m.impl("_to_sparse.sparse_dim", common<c10::DispatchKey::CPU>());
}

// Raises for operands of mul that a Mac's kernel rejects and torch's CPU kernel broadcasts.
void check_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_sparse() && b.is_sparse()) {
    TORCH_CHECK(a.sparse_dim() == b.sparse_dim(),
                "mul(sparse, sparse): must have same sparse_dim, got ", a.sparse_dim(), " vs ",
                b.sparse_dim());
    TORCH_CHECK(a.sizes().slice(0, a.sparse_dim()).equals(b.sizes().slice(0, b.sparse_dim())),
                "mul(sparse, sparse): sparse sizes must match exactly.");
    return;
  }
  if (!a.is_sparse() && !b.is_sparse()) return;  // only `out` is sparse
  const at::Tensor& dense = a.is_sparse() ? b : a;
  const at::Tensor& sparse = a.is_sparse() ? a : b;
  TORCH_CHECK(dense.numel() == 1 || internals::sparse_impl(sparse)->nnz() == 0 ||
                  dense.sizes().equals(sparse.sizes()),
              "mul(dense, sparse): sizes must match exactly (no broadcasting): ", dense.sizes(),
              " vs ", sparse.sizes());
}

bool is_filled(const at::Tensor& tensor) {
  return tensor.is_sparse() && internals::sparse_impl(tensor)->nnz() != 0;
}

// Runs a SparseCPU kernel on the memory of mps tensors.
class SparseStandIn final : public c10::OperatorKernel {
 public:
  explicit SparseStandIn(const c10::OperatorHandle& op)
      : stand_in_(stand_in_for(op, c10::DispatchKey::SparseCPU)),
        is_product_(op.schema().name() == "aten::mul"),
        coalesces_(is_product_ || op.schema().name() == "aten::add") {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const bool coalesce = coalesces_ && prepare(op, *stack);
    stand_in_(op, stack);
    if (coalesce) coalesce_in_place(torch::jit::peek(*stack, 0, 1).toTensor());
  }

 private:
  // Checks the operands; returns true if the sum or product must be coalesced.
  bool prepare(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    const size_t arguments = op.schema().arguments().size();
    const at::Tensor& a = torch::jit::peek(stack, 0, arguments).toTensor();
    const at::Tensor& b = torch::jit::peek(stack, 1, arguments).toTensor();
    if (is_product_) check_product(a, b);
    return is_filled(a) && is_filled(b);
  }

  // Coalesces the result: a Mac always does for two sparse operands, the CPU not always.
  static void coalesce_in_place(const at::Tensor& tensor) {
    if (tensor.is_coalesced()) return;
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor coalesced = tensor.coalesce();
    const auto* const parts = internals::sparse_impl(coalesced);
    internals::set_sparse(tensor, coalesced, parts->indices(), parts->values());
  }

  const BoxedKernel stand_in_;
  const bool is_product_;
  const bool coalesces_;
};

}  // namespace

void register_sparse_operators(const std::vector<std::string>& common_overloads,
                               const std::vector<std::string>& others) {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::SparseMPS, __FILE__,
                                __LINE__);
  for (const std::string& overload : common_overloads) {
    library.impl(overload.c_str(), common<c10::DispatchKey::SparseCPU>());
  }
  for (const std::string& overload : others) {
    const auto op = find_overload(overload);
    TORCH_CHECK(op, "register_sparse_operators: there is no operator ", overload);
    library.impl(overload.c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<SparseStandIn>(*op)));
  }
}

}  // namespace metalops::device
