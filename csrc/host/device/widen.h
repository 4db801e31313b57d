// One operator's CPU kernel, run in a wider type for dtypes that the stock MPS kernel takes and
// torch's CPU kernel refuses.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace metalops::device {

// Calls the kernel of `op` for `key`, CPU or SparseCPU, with CPU arguments. When the kernel refuses
// a dtype ("not implemented for 'Half'"), the arguments of that dtype are computed in a wider one
// and the results are cast back; arguments that the operator writes get the cast result. So are
// 16-bit floats where a kernel is known to compute with them wrongly. What a kernel takes is tried
// once and remembered for each combination of dtypes, kinds of shape and modes. Threads may call at
// the same time.
class CpuKernel {
 public:
  CpuKernel(const c10::OperatorHandle& op, c10::DispatchKey key);
  ~CpuKernel();
  CpuKernel(const CpuKernel&) = delete;
  CpuKernel& operator=(const CpuKernel&) = delete;

  // Whether some CPU kernel refuses tensors of this dtype that the stock MPS kernel takes.
  static bool may_refuse(const at::Tensor& tensor);

  // The arguments are on top of the stack; results take their place.
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  using Signature = c10::SmallVector<uint8_t, 48>;
  // What is computed instead of what.
  struct Widening {
    c10::ScalarType refused;
    c10::ScalarType wide;
  };
  struct Remembered {
    Signature signature;
    std::optional<Widening> widening;  // none: the kernel takes the arguments as they are
    const Remembered* next;
  };

  Signature signature(c10::ArrayRef<c10::IValue> arguments) const;
  const Remembered* find(const Signature& signature) const;
  void remember(Signature signature, std::optional<Widening> widening);

  // Only ever grows at its head, so that reading it takes no lock.
  std::atomic<const Remembered*> remembered_{nullptr};
  const c10::DispatchKeySet key_;
  std::vector<bool> is_dtype_;  // of each argument
  bool in_place_ = false;       // some argument is both read and written
  bool wrong_in_halves_;        // what it computes with 16-bit floats is never used
};

}  // namespace metalops::device
