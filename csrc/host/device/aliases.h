// CPU tensors that alias mps tensors for one call of a CPU kernel, and the way back.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>
#include <device/allocator.h>
#include <metal/streams.h>

namespace metalops::device {

class Aliases {
 public:
  // The call runs now, after all that its stream has queued, or will be queued itself.
  enum class Call { kNow, kQueued };
  explicit Aliases(Call call = Call::kNow) {
    streams::follow(streams::Followers::Work::kOperator);
    if (call == Call::kNow) streams::before_direct_work();
  }

  // Returns the CPU tensor for an argument, strided or sparse COO. Identical tensors and tensors
  // that share memory remain so. CPU tensors pass unchanged. An argument that is not moved here
  // must outlive this object: holding another reference to a tensor of Python's would take the GIL.
  at::Tensor to_cpu(const at::Tensor& tensor);
  at::Tensor to_cpu(at::Tensor&& tensor);
  std::optional<at::Tensor> to_cpu(const std::optional<at::Tensor>& tensor);

  // Returns the mps tensor for a result: an argument that was returned, a view of one, or new
  // memory, adopted without a copy.
  at::Tensor to_mps(const at::Tensor& result);

  // Applies a kernel's changes of sizes, strides and storages to the arguments, and of indices and
  // values to sparse ones.
  void write_back();

  // Returns true if a CPU tensor aliases an argument.
  bool is_alias(const at::Tensor& cpu) const;

  bool saw_mps() const { return mps_at_ != 0; }
  // Raises RuntimeError, as TensorIterator does, if a CPU tensor with dimensions was among the
  // arguments.
  void check_same_device() const;

 private:
  struct StoragePair {
    c10::Storage mps;
    c10::Storage cpu;
    const void* memory;  // of both tensors, when the alias was made
  };
  struct TensorPair {
    c10::MaybeOwned<at::Tensor> mps;
    at::Tensor cpu;
  };
  at::Tensor to_cpu(c10::MaybeOwned<at::Tensor> tensor);
  at::Tensor alias(c10::MaybeOwned<at::Tensor> mps);
  void write_back_sparse(const at::Tensor& mps, const at::Tensor& cpu);

  const ServesDevice serves_device_;
  c10::SmallVector<StoragePair, 4> storages_;
  c10::SmallVector<TensorPair, 4> tensors_;
  // Positions of the first mps tensor and of the first CPU tensor with dimensions, counted from 1.
  int arguments_ = 0;
  int mps_at_ = 0;
  int cpu_at_ = 0;
};

}  // namespace metalops::device
