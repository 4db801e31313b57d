// at::native::mps::MetalShaderLibrary and its subclasses: loads, compiles and looks up kernels. The
// elementwise calls are in elementwise_*.cpp.
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <c10/util/Exception.h>

#include <mutex>

#include <locks.h>
#include <metal/compile.h>
#include <metal/metallib.h>
#include <metal/pipeline.h>
#include <torch_internals.h>

namespace at::native::mps {
namespace {

using metalops::CompiledLibrary;
using metalops::ForkSafeMutex;
using metalops::GilSafeMutex;
using metalops::Pipeline;

// Held while a library is compiled, which runs Python, so that it is compiled once.
GilSafeMutex& compiling = *new GilSafeMutex;
// Guards the maps of every MetalShaderLibrary.
ForkSafeMutex& maps = *new ForkSafeMutex;

CompiledLibrary& compiled(MTLLibrary_t library) { return *static_cast<CompiledLibrary*>(library); }

}  // namespace

MetalShaderLibrary::~MetalShaderLibrary() {
  for (const auto& [key, states] : cplMap) {
    metalops::internals::release(static_cast<Pipeline*>(states.first));
  }
  // `library` may also be in the map: compileLibrary leaves the last one there, as torch does.
  bool deleted = false;
  for (const auto& [key, one] : libMap) {
    deleted |= one == library;
    delete static_cast<CompiledLibrary*>(one);
  }
  if (!deleted) delete static_cast<CompiledLibrary*>(library);
}

MTLLibrary_t MetalShaderLibrary::compileLibrary(const std::string& src) {
  return new CompiledLibrary(metalops::compile_metal(src));
}

MTLLibrary_t MetalShaderLibrary::getLibrary() {
  // Read without the lock: this is on the path of every launch, and the member changes once, from
  // null.
  MTLLibrary_t ready = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  if (C10_LIKELY(ready != nullptr)) return ready;
  std::lock_guard<GilSafeMutex> once(compiling);
  if (!library) {
    TORCH_INTERNAL_ASSERT(nparams == 0);
    __atomic_store_n(&library, compileLibrary(shaderSource), __ATOMIC_RELEASE);
  }
  return library;
}

MTLLibrary_t MetalShaderLibrary::getLibrary(const std::initializer_list<std::string>& params) {
  TORCH_INTERNAL_ASSERT(nparams == params.size());
  TORCH_INTERNAL_ASSERT(nparams >= 1 && nparams <= 3, "Unsupported number of parameters ", nparams);
  std::string key;
  for (const std::string& param : params) {
    key += ':';
    key += param;
  }
  std::lock_guard<GilSafeMutex> once(compiling);
  if (auto found = libMap.find(key); found != libMap.end()) return found->second;
  MTLLibrary_t result = compileLibrary(metalops::format_source(shaderSource, params));
  {
    std::lock_guard<ForkSafeMutex> lock(maps);
    libMap.emplace(std::move(key), result);
  }
  __atomic_store_n(&library, result, __ATOMIC_RELEASE);
  return result;
}

std::pair<MTLComputePipelineState_t, MTLFunction_t> MetalShaderLibrary::getLibraryPipelineState(
    MTLLibrary_t lib, const std::string& fname) {
  const std::string key = std::to_string(reinterpret_cast<uintptr_t>(lib)) + ":" + fname;
  {
    std::lock_guard<ForkSafeMutex> lock(maps);
    if (auto found = cplMap.find(key); found != cplMap.end()) return found->second;
  }
  // No lock is held here: a kernel may be compiled now.
  const auto& loaded = compiled(lib);
  const auto& part = loaded.part_with(fname);
  auto pipeline = c10::make_intrusive<Pipeline>(part, &loaded.described_kernel(fname));
  part->begin(fname);
  std::lock_guard<ForkSafeMutex> lock(maps);
  const auto [found, is_new] = cplMap.try_emplace(key, pipeline.get(), pipeline.get());
  if (is_new) pipeline.release();
  return found->second;
}

std::vector<std::string> MetalShaderLibrary::getFunctionNames() {
  if (C10_UNLIKELY(!library && nparams > 0)) {
    throw std::runtime_error("Library must be initialized first");
  }
  return compiled(getLibrary()).names();
}

bool MetalShaderLibrary::hasFunction(const std::string& fname) {
  return compiled(getLibrary()).has(fname);
}

std::shared_ptr<MetalKernelFunction> MetalShaderLibrary::getKernelFunction(
    const std::string& name) {
  auto [state, function] = getLibraryPipelineState(getLibrary(), name);
  return std::make_shared<MetalKernelFunction>(state, function);
}

MetalKernelFunction* MetalShaderLibrary::getCachedKernelFunctionPtr(const std::string& name) {
  auto [state, function] = getLibraryPipelineState(getLibrary(), name);
  std::lock_guard<ForkSafeMutex> lock(maps);
  auto& cached = kernelCache[name];
  if (!cached) cached = std::make_unique<MetalKernelFunction>(state, function);
  return cached.get();
}

MetalShaderLibrary& MetalShaderLibrary::getBundledLibrary() {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "MetalShaderLibrary::getBundledLibrary: torch's own Metal kernels "
                              "are part of its macOS build only");
}

DynamicMetalShaderLibrary::~DynamicMetalShaderLibrary() = default;

PrecompiledMetalShaderLibrary::PrecompiledMetalShaderLibrary(std::vector<uint8_t> data)
    : MetalShaderLibrary("") {
  try {
    library = new CompiledLibrary(
        metalops::read_metallib({reinterpret_cast<const char*>(data.data()), data.size()}));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "Failed to load metallib: ", error.what_without_backtrace());
  }
}

PrecompiledMetalShaderLibrary::PrecompiledMetalShaderLibrary(const std::string& path)
    : MetalShaderLibrary("") {
  try {
    library = new CompiledLibrary(metalops::open_metallib(path));
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "Failed to load metallib from '", path,
                "': ", error.what_without_backtrace());
  }
}

PrecompiledMetalShaderLibrary::~PrecompiledMetalShaderLibrary() = default;

}  // namespace at::native::mps
