// The registry of an extension's kernel files. The build helper compiles this file into every
// extension.
#include <ATen/TensorIterator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <metalops/kernel_name.h>
#include <metalops/kernel_source.h>
#include <metalops/library.h>
#include <metalops/tiles_launch.h>
#include <metalops/torch_internals.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <memory>

namespace metalops {

using at::native::mps::DynamicMetalShaderLibrary;
using at::native::mps::MetalKernelFunction;
using at::native::mps::MetalShaderLibrary;
using at::native::mps::PrecompiledMetalShaderLibrary;

// An opened library. It is never destroyed: the device may be gone when the process runs its
// destructors.
struct detail::OpenedLibrary {
  std::unique_ptr<Library> library;
  std::string origin;
  std::string problem;
};

namespace {

// A kernel that was found. The list grows only at its head, so that reading it takes no lock.
struct FoundKernel {
  const MetalShaderLibrary* library;
  KernelName name;
  MetalKernelFunction* kernel;
  const FoundKernel* next;
};
std::array<std::atomic<const FoundKernel*>, 512> found_kernels{};

// Kernel files register themselves while the extension is being loaded, in any order.
detail::KernelSource* first_source = nullptr;

// A library that torch opened in one of its own ways. It is never destroyed either, as it owns the
// kernels.
template <class Opened>
struct Opening final : Opened {
  using Opened::Opened;
  MTLLibrary_t opened() { return this->getLibrary(); }
};

template <class Opened>
std::unique_ptr<Library> open_as(const std::string& argument) {
  auto opening = std::make_unique<Opening<Opened>>(argument);
  auto result = std::make_unique<Library>(opening->opened());
  opening.release();
  return result;
}

std::string extension_folder() {
  Dl_info info{};
  TORCH_CHECK(dladdr(&first_source, &info) != 0 && info.dli_fname != nullptr,
              "metalops: the path of this extension is unknown");
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string prebuilt_path(const detail::KernelSource& source) {
  return *source.prebuilt == '\0' ? std::string() : extension_folder() + "/" + source.prebuilt;
}

bool exists(const std::string& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0;
}

std::unique_ptr<detail::OpenedLibrary> open(const detail::KernelSource& source) {
  auto result = std::make_unique<detail::OpenedLibrary>();
  const auto path = prebuilt_path(source);
  if (path.empty()) {
    result->problem = "the build had no Metal compiler";
  } else if (!exists(path)) {
    result->problem = "the file is missing";
  } else {
    try {
      result->library = open_as<PrecompiledMetalShaderLibrary>(path);
      result->library
          ->getFunctionNames();  // a library that loads lazily fails here, not at the first kernel
      result->origin = "prebuilt";
      return result;
    } catch (const c10::Error& error) {
      result->problem = error.what_without_backtrace();
    }
  }
  result->library = open_as<DynamicMetalShaderLibrary>(source.text);
  result->origin = "source";
  return result;
}

}  // namespace

namespace detail {

KernelSource::KernelSource(const char* family, const char* text, const char* prebuilt)
    : family(family), text(text), prebuilt(prebuilt), next(first_source) {
  first_source = this;
}

}  // namespace detail

Library& library(std::string_view family) {
  for (auto* source = first_source; source != nullptr; source = source->next) {
    if (source->family != family) {
      continue;
    }
    auto* current = source->opened.load(std::memory_order_acquire);
    if (current == nullptr) {
      // No lock is held while compiling, which may take Python's interpreter lock. Two threads may
      // compile the same file at once; the first to finish wins.
      auto mine = open(*source);
      if (source->opened.compare_exchange_strong(current, mine.get(), std::memory_order_acq_rel)) {
        current = mine.release();
      }
    }
    return *current->library;
  }
  std::string known;
  for (auto* source = first_source; source != nullptr; source = source->next) {
    known += (known.empty() ? "" : ", ") + std::string(source->family);
  }
  TORCH_CHECK(false, "metalops: this extension has no kernel file ", family,
              ".metal; it was built with ", known.empty() ? "none" : known);
}

namespace {

// Calls exec(part) for each part of the iterator that can be indexed with 32 bits.
template <class Exec>
void for_parts(at::TensorIteratorBase& iter, const Exec& exec) {
  if (iter.can_use_32bit_indexing()) {
    exec(iter);
    return;
  }
  for (auto&& part : iter.with_32bit_indexing()) {
    exec(part);
  }
}

}  // namespace

void Library::exec_unary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                                const std::optional<c10::Scalar>& alpha,
                                std::optional<c10::ScalarType> scalar_arg_type,
                                std::optional<uint32_t> ilp_threshold) {
  for_parts(iter, [&](at::TensorIteratorBase& part) {
    if (!launch_tiles(*this, part, name, alpha, scalar_arg_type)) {
      MetalShaderLibrary::exec_unary_kernel(part, name, alpha, scalar_arg_type, ilp_threshold);
    }
  });
}

void Library::exec_binary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                                 const std::optional<c10::Scalar>& alpha,
                                 std::optional<c10::ScalarType> scalar_arg_type,
                                 std::optional<c10::ScalarType> natural_output_dtype,
                                 std::optional<uint32_t> ilp_threshold) {
  for_parts(iter, [&](at::TensorIteratorBase& part) {
    if (!launch_tiles(*this, part, name, alpha, scalar_arg_type)) {
      MetalShaderLibrary::exec_binary_kernel(part, name, alpha, scalar_arg_type,
                                             natural_output_dtype, ilp_threshold);
    }
  });
}

void Library::exec_ternary_kernel(at::TensorIteratorBase& iter, const std::string& name,
                                  const std::optional<c10::Scalar>& alpha,
                                  std::optional<c10::ScalarType> scalar_arg_type) {
  for_parts(iter, [&](at::TensorIteratorBase& part) {
    if (!launch_tiles(*this, part, name, alpha, scalar_arg_type)) {
      internals::exec_ternary_kernel(static_cast<MetalShaderLibrary&>(*this), part, name, alpha,
                                     scalar_arg_type);
    }
  });
}

MetalKernelFunction& kernel(MetalShaderLibrary& library, const KernelName& name) {
  auto& found = found_kernels[name.hash() % found_kernels.size()];
  for (auto* one = found.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    if (one->library == &library && one->name == name) {
      return *one->kernel;
    }
  }
  auto* const kernel = library.getCachedKernelFunctionPtr(name.text());
  auto* const one = new FoundKernel{&library, name, kernel, found.load(std::memory_order_relaxed)};
  while (!found.compare_exchange_weak(one->next, one, std::memory_order_acq_rel)) {
  }
  return *kernel;
}

std::vector<LibraryState> libraries() {
  std::vector<LibraryState> result;
  for (auto* source = first_source; source != nullptr; source = source->next) {
    LibraryState state{source->family, prebuilt_path(*source), "", ""};
    if (const auto* current = source->opened.load(std::memory_order_acquire)) {
      state.origin = current->origin;
      state.problem = current->problem;
    }
    result.push_back(std::move(state));
  }
  return result;
}

}  // namespace metalops
