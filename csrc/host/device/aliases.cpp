// Aliases: CPU views of mps arguments, and the write-back of metadata that a CPU kernel changed.
#include <ATen/ops/empty_strided.h>
#include <device/aliases.h>
#include <device/device.h>
#include <torch_internals.h>

#include <algorithm>
#include <utility>

namespace metalops::device {
namespace {

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

}  // namespace

at::Tensor Aliases::to_cpu(const at::Tensor& tensor) {
  return to_cpu(c10::MaybeOwned<at::Tensor>::borrowed(tensor));
}

at::Tensor Aliases::to_cpu(at::Tensor&& tensor) {
  return to_cpu(c10::MaybeOwned<at::Tensor>::owned(std::move(tensor)));
}

at::Tensor Aliases::to_cpu(c10::MaybeOwned<at::Tensor> argument) {
  const at::Tensor& tensor = *argument;
  if (!tensor.defined()) return tensor;
  ++arguments_;
  if (!tensor.device().is_mps()) {
    if (cpu_at_ == 0 && tensor.device().is_cpu() && tensor.dim() != 0) cpu_at_ = arguments_;
    return tensor;
  }
  if (mps_at_ == 0) mps_at_ = arguments_;
  return alias(std::move(argument));
}

at::Tensor Aliases::alias(c10::MaybeOwned<at::Tensor> argument) {
  const at::Tensor& tensor = *argument;
  for (const TensorPair& pair : tensors_) {
    if (pair.mps->is_same(tensor)) return pair.cpu;
  }
  if (tensor.is_sparse()) {
    const auto* parts = internals::sparse_impl(tensor);
    at::Tensor indices = alias(c10::MaybeOwned<at::Tensor>::owned(parts->indices()));
    at::Tensor values = alias(c10::MaybeOwned<at::Tensor>::owned(parts->values()));
    at::Tensor cpu = internals::sparse_on(c10::DispatchKey::SparseCPU, tensor, indices, values);
    tensors_.push_back({std::move(argument), std::move(cpu)});
    return tensors_.back().cpu;
  }
  // The tangent of a value that does not depend on the input has no memory: kernels get zeros.
  if (C10_UNLIKELY(tensor.key_set().has(c10::DispatchKey::ZeroTensor))) {
    at::Tensor zeros =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
    tensors_.push_back({std::move(argument), zeros.zero_()});
    return tensors_.back().cpu;
  }
  const c10::Storage& storage = tensor.storage();
  const c10::Storage* cpu = nullptr;
  for (const StoragePair& pair : storages_) {
    if (pair.mps.is_alias_of(storage)) cpu = &pair.cpu;
  }
  if (cpu == nullptr) {
    storages_.push_back({storage, cpu_alias(storage), storage.data()});
    cpu = &storages_.back().cpu;
  }
  at::Tensor strided = internals::tensor_on(*cpu, c10::DispatchKey::CPU, tensor);
  tensors_.push_back({std::move(argument), std::move(strided)});
  return tensors_.back().cpu;
}

std::optional<at::Tensor> Aliases::to_cpu(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined()) return std::nullopt;
  return to_cpu(*tensor);
}

at::Tensor Aliases::to_mps(const at::Tensor& result) {
  if (!result.defined() || !result.device().is_cpu()) return result;
  TORCH_CHECK_NOT_IMPLEMENTED(
      (result.layout() == at::kStrided || result.is_sparse()) && !result.is_quantized(),
      "The MPS device, which metalops provides in software here, has strided tensors and sparse "
      "ones in COO, but the operator returns one that is ",
      result.is_quantized() ? "quantized" : c10::str("of layout ", result.layout()), ".");
  for (const TensorPair& pair : tensors_) {
    if (pair.cpu.is_same(result)) return *pair.mps;
  }
  if (result.is_sparse()) {
    const auto* parts = internals::sparse_impl(result);
    return internals::sparse_on(c10::DispatchKey::SparseMPS, result, to_mps(parts->indices()),
                                to_mps(parts->values()));
  }
  check_dtype(result.scalar_type());
  for (const StoragePair& pair : storages_) {
    if (pair.cpu.is_alias_of(result.storage()))
      return internals::tensor_on(pair.mps, c10::DispatchKey::MPS, result);
  }
  check_dimensions(result.dim());
  c10::Storage mps = adopt_storage(result.storage());
  storages_.push_back({mps, result.storage(), mps.data()});
  return internals::tensor_on(mps, c10::DispatchKey::MPS, result);
}

bool Aliases::is_alias(const at::Tensor& cpu) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const TensorPair& pair) { return pair.cpu.is_same(cpu); });
}

void Aliases::check_same_device() const {
  if (mps_at_ == 0 || cpu_at_ == 0) return;
  const c10::Device cpu(c10::kCPU);
  const c10::Device& first = mps_at_ < cpu_at_ ? kDevice : cpu;
  const c10::Device& second = mps_at_ < cpu_at_ ? cpu : kDevice;
  TORCH_CHECK(false,
              "Expected all tensors to be on the same device, but found at least two devices, ",
              first, " and ", second, "!");
}

void Aliases::write_back() {
  for (StoragePair& pair : storages_) {
    if (pair.cpu.data() == pair.memory && pair.cpu.nbytes() == pair.mps.nbytes()) continue;
    const size_t bytes = pair.cpu.nbytes();
    internals::replace_memory(pair.mps, adopt(pair.cpu), bytes);
    pair.memory = pair.mps.data();
  }
  for (const TensorPair& pair : tensors_) {
    if (pair.cpu.is_sparse()) {
      write_back_sparse(*pair.mps, pair.cpu);
      continue;
    }
    if (same_geometry(*pair.mps, pair.cpu)) continue;
    internals::set_geometry(*pair.mps, pair.cpu.sizes(), pair.cpu.strides(),
                            pair.cpu.storage_offset());
  }
}

// Leaves an unchanged tensor alone: it may be one that does not allow changes.
void Aliases::write_back_sparse(const at::Tensor& mps, const at::Tensor& cpu) {
  const auto* const before = internals::sparse_impl(mps);
  const auto* const after = internals::sparse_impl(cpu);
  const at::Tensor indices = to_mps(after->indices());
  const at::Tensor values = to_mps(after->values());
  if (indices.is_same(before->indices()) && values.is_same(before->values()) &&
      mps.sizes() == cpu.sizes() && before->coalesced() == after->coalesced()) {
    return;
  }
  internals::set_sparse(mps, cpu, indices, values);
}

}  // namespace metalops::device
