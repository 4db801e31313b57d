// Runs an operator's CPU kernel in a wider dtype, for dtypes that the stock MPS kernel accepts and
// torch's CPU kernel rejects.
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

// Calls the kernel of `op` for `key`, CPU or SparseCPU, with CPU arguments. When the kernel rejects
// a dtype ("not implemented for 'Half'"), arguments of that dtype are computed in a wider one and
// the results are cast back; arguments that the operator writes get the cast result. The same is
// done for 16-bit floats where a kernel is known to compute wrong results with them. The outcome is
// tried once and remembered for each combination of dtypes, kinds of shape and modes. Thread-safe.
class CpuKernel {
 public:
  CpuKernel(const c10::OperatorHandle& op, c10::DispatchKey key);
  ~CpuKernel();
  CpuKernel(const CpuKernel&) = delete;
  CpuKernel& operator=(const CpuKernel&) = delete;

  // Returns true if some CPU kernel rejects tensors of this dtype that the stock MPS kernel
  // accepts.
  static bool may_refuse(const at::Tensor& tensor);

  // Calls the kernel with the arguments on top of the stack; results take their place.
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

 private:
  using Signature = c10::SmallVector<uint8_t, 48>;
  // The dtype that is replaced, and the one used for it.
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

  // Grows only at its head, so that reading takes no lock.
  std::atomic<const Remembered*> remembered_{nullptr};
  const c10::DispatchKeySet key_;
  std::vector<bool> is_dtype_;  // of each argument
  bool in_place_ = false;       // an argument is both read and written
  bool wrong_in_halves_;        // its results with 16-bit floats are never used
};

}  // namespace metalops::device
