// Loads kernel libraries: shared objects that the front end compiled.
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_map>

#include <exec/cpu_features.h>
#include <exec/in_kernel.h>
#include <exec/runtime.h>
#include <exec/sanitize/findings.h>
#include <locks.h>

namespace metalops::exec {
namespace {

// Finds the library of a kernel, for messages.
class Registry {
 public:
  void add(const msl::abi::Library& library, std::string_view source) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    Entry& entry = by_first_kernel_[library.kernels];
    entry.library = &library;
    entry.source = source;
    ++entry.opened;
  }
  void remove(const msl::abi::Library& library) {
    OnFibers last;  // its libraries remove themselves, once the lock is free
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = by_first_kernel_.find(library.kernels);
    if (found != by_first_kernel_.end() && --found->second.opened == 0) {
      last = std::move(found->second.on_fibers);
      by_first_kernel_.erase(found);
    }
  }
  // Returns "file:line:column", or "" when the kernel or the site is not known.
  std::string place(const Kernel& kernel, uint32_t site) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const Entry* entry = find(kernel);
    if (entry == nullptr || site >= entry->library->site_count) return "";
    const auto& location = entry->library->sites[site];
    std::ostringstream text;
    text << location.file << ':' << location.line << ':' << location.column;
    return text.str();
  }

  Origin origin(const Kernel& kernel) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const Entry* entry = find(kernel);
    if (entry == nullptr) return {};
    Origin origin{entry->source, entry->library->language, {}};
    for (uint32_t i = 0; i < entry->library->function_constant_count; ++i) {
      const auto& constant = entry->library->function_constants[i];
      if (*constant.is_defined == 0) continue;
      const std::string value(static_cast<const char*>(constant.value), constant.bytes);
      origin.constants.push_back({constant.index, value});
    }
    return origin;
  }

  // Returns the library with a kernel's form for fibers; null if there is none yet.
  std::shared_ptr<Library> on_fibers(const Kernel& kernel) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const Entry* entry = find(kernel);
    if (entry == nullptr) return nullptr;
    const auto found = entry->on_fibers.find(&kernel);
    return found == entry->on_fibers.end() ? nullptr : found->second;
  }
  // Keeps it as long as the kernel's own library. Returns the one of the thread that came first.
  std::shared_ptr<Library> keep_on_fibers(const Kernel& kernel, std::shared_ptr<Library> made) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    auto* entry = const_cast<Entry*>(find(kernel));
    TORCH_INTERNAL_ASSERT(entry != nullptr, "the library of a kernel that is launched is open");
    return entry->on_fibers.emplace(&kernel, std::move(made)).first->second;
  }

 private:
  using OnFibers = std::unordered_map<const Kernel*, std::shared_ptr<Library>>;
  struct Entry {
    const msl::abi::Library* library = nullptr;
    std::string_view source;
    int opened = 0;      // reference count: a file that is opened twice is loaded once
    OnFibers on_fibers;  // by kernel that is compiled as a group loop alone
  };
  // Returns null when the library is not known.
  const Entry* find(const Kernel& kernel) const {
    auto after = by_first_kernel_.upper_bound(&kernel);
    if (after == by_first_kernel_.begin()) return nullptr;
    const Entry& entry = std::prev(after)->second;
    return &kernel < entry.library->kernels + entry.library->kernel_count ? &entry : nullptr;
  }

  ForkSafeMutex mutex_;
  std::map<const Kernel*, Entry> by_first_kernel_;
};
Registry& registry = *new Registry;  // leaked, to outlive every library

// The notes of the kernels that have any.
class NotesOfKernels {
 public:
  void add(const msl::abi::Notes& notes,
           const std::unordered_map<std::string, const Kernel*>& kernels) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    for (const auto* entry = notes.arguments; entry->kernel != nullptr; ++entry) {
      const auto found = kernels.find(entry->kernel);
      if (found == kernels.end()) continue;
      auto& known = notes_[found->second];
      if (known == nullptr) {
        known = std::make_unique<KernelNotes>();
        known->tables.resize(found->second->argument_count);
        known->switches.resize(found->second->argument_count);
        for (const auto* one = notes.visible; one->name != nullptr; ++one) {
          known->visible.emplace(one->name, *one);
        }
      }
      known->tables[entry->position] = entry->table;
      known->switches[entry->position] = entry->is_on;
      any_.store(true, std::memory_order_release);
    }
  }
  void remove(const msl::abi::Library& library) {
    if (!any_.load(std::memory_order_acquire)) return;
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    for (uint32_t i = 0; i < library.kernel_count; ++i) notes_.erase(&library.kernels[i]);
  }
  const KernelNotes* find(const Kernel& kernel) {
    if (!any_.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = notes_.find(&kernel);
    return found == notes_.end() ? nullptr : found->second.get();
  }

 private:
  std::atomic<bool> any_ = false;
  ForkSafeMutex mutex_;
  std::unordered_map<const Kernel*, std::unique_ptr<KernelNotes>> notes_;
};
NotesOfKernels& kernel_notes = *new NotesOfKernels;

uintptr_t base_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? reinterpret_cast<uintptr_t>(info.dli_fbase) : 0;
}

// The libraries that were built with a sanitizer, by load address.
class SanitizedModules {
 public:
  void add(Module module) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    modules_[module.base] = std::move(module);
  }
  Module find(uintptr_t base) {
    std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto found = modules_.find(base);
    return found != modules_.end() ? found->second : Module();
  }

 private:
  ForkSafeMutex mutex_;
  std::map<uintptr_t, Module> modules_;  // these libraries are never unloaded
};
SanitizedModules& sanitized_modules = *new SanitizedModules;

// Raises, with what to do, when a library and this process do not have the same sanitizer.
void check_sanitizer(const std::string& name, const char* built_with) {
  const char* wanted = nullptr;
  if (sanitize_mode() == SanitizeMode::kAddress) wanted = "address";
  if (sanitize_mode() == SanitizeMode::kThread) wanted = "thread";
  if (wanted == nullptr) return;
  TORCH_CHECK(built_with != nullptr && std::strcmp(built_with, wanted) == 0, "the kernel library ",
              name, " was built without the ", wanted,
              " sanitizer, so its kernels cannot be checked. Build it with `python -m metalops "
              "compile --sanitize ",
              wanted, "`, or compile its source at run time.");
}

// Returns a path of the file descriptor that was never used before: the loader takes equal names
// for the same library, and descriptors are reused. Extra slashes and "./" encode a counter in
// binary.
std::string fresh_path(int descriptor) {
  static std::atomic<uint32_t> counter{0};
  std::string path = "/proc/self/fd/";
  for (uint32_t rest = counter++; rest != 0; rest >>= 1) path += rest & 1u ? "./" : "/";
  return path + std::to_string(descriptor);
}

void write_all(int descriptor, const std::string& data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t written = write(descriptor, data.data() + done, data.size() - done);
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written > 0, "cannot copy a kernel library into memory: ", std::strerror(errno));
    done += size_t(written);
  }
}

// Raises if a file was truncated. The loader maps a file by its headers, and the first access
// beyond its end would end the process. The section table is the last thing in the file.
void check_complete(const std::string& name, const char* begin, size_t available, uint64_t size) {
  ElfW(Ehdr) header;
  if (available < sizeof(header)) return;  // the loader reports this itself
  std::memcpy(&header, begin, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;  // and this too
  TORCH_CHECK(header.e_shoff + uint64_t(header.e_shentsize) * header.e_shnum <= size,
              "the kernel library ", name, " is incomplete: it has ", size, " bytes of ",
              header.e_shoff + uint64_t(header.e_shentsize) * header.e_shnum, ". Build it again.");
}

void check_complete(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[sizeof(ElfW(Ehdr))];
  if (!file.read(begin, sizeof(begin))) return;
  file.seekg(0, std::ios::end);
  check_complete(path, begin, sizeof(begin), uint64_t(file.tellg()));
}

// Loads a copy of the shared object in memory, with its own globals.
void* load_copy(const std::string& data) {
  check_complete("in memory", data.data(), data.size(), data.size());
  const int descriptor = memfd_create("metalops-kernels", MFD_CLOEXEC);
  TORCH_CHECK(descriptor >= 0,
              "cannot create a file in memory for a kernel library: ", std::strerror(errno));
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  write_all(descriptor, data);
  return dlopen(fresh_path(descriptor).c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, "cannot read the kernel library ", path, ": ", std::strerror(errno));
  std::ostringstream data;
  data << file.rdbuf();
  return std::move(data).str();
}

}  // namespace

uintptr_t library_base(const void* instruction) { return base_of(instruction); }

Module module_of(const void* instruction) { return sanitized_modules.find(base_of(instruction)); }

const KernelNotes* notes_of(const Kernel& kernel) { return kernel_notes.find(kernel); }

Origin origin_of(const Kernel& kernel) { return registry.origin(kernel); }

namespace {

// Compiles kernels of a library from its source, for the engines that compile_left_out names, and
// gives its function constants to them. No lock may be held, since this may take Python's
// interpreter lock.
std::shared_ptr<Library> compiled_from(const Origin& origin, const std::vector<std::string>& names,
                                       const char* engines) {
  TORCH_CHECK(compile_left_out != nullptr, "the kernel ", names.front(),
              " is compiled at its first use, which needs a running Python interpreter");
  auto made = compile_left_out(origin.source, origin.language, names, engines);
  return origin.constants.empty() ? made : made->specialise(origin.constants);
}

}  // namespace

const Kernel& on_fibers(const Kernel& kernel) {
  if (kernel.thread != nullptr) return kernel;
  std::shared_ptr<Library> library = registry.on_fibers(kernel);
  if (library == nullptr) {
    library = registry.keep_on_fibers(
        kernel, compiled_from(registry.origin(kernel), {kernel.name}, "fiber"));
  }
  return *library->find(kernel.name);
}

std::string describe(const Kernel& kernel, msl::abi::Site site) {
  const std::string place = registry.place(kernel, site.id);
  return place.empty() ? "an unknown line" : place;
}

struct Library::Impl {
  void* handle = nullptr;
  bool sanitized = false;
  const msl::abi::Library* table = nullptr;
  std::string_view source;
  void (*bind)(const msl::abi::Runtime*) = nullptr;
  std::string path;                         // for libraries opened from a file
  std::shared_ptr<const std::string> data;  // for libraries opened from memory
  std::string on_disk;                      // a copy of `data` for the reader of debug information
  std::unordered_map<std::string, const Kernel*> kernels;
  std::unordered_map<std::string, uint32_t> left_out;   // the part of each
  std::unordered_map<std::string, const char*> absent;  // the reason of each
  std::vector<ConstantValue> values;                    // of function constants, by specialise()
  ForkSafeMutex mutex;                                  // guards `parts`
  std::unordered_map<uint32_t, std::shared_ptr<Library>> parts;

  ~Impl() {
    if (table != nullptr) {
      registry.remove(*table);
      kernel_notes.remove(*table);
      forget_code(*table);
    }
    // AddressSanitizer keeps pointers to its records of a library's variables.
    if (handle != nullptr && !sanitized) dlclose(handle);
    if (!on_disk.empty()) unlink(on_disk.c_str());
  }

  // Checks a loaded object and takes its tables.
  void take(void* loaded, const std::string& name) {
    if (loaded == nullptr) {
      const char* reason = dlerror();
      TORCH_CHECK(reason == nullptr || (std::strstr(reason, "__asan_") == nullptr &&
                                        std::strstr(reason, "__tsan_") == nullptr &&
                                        std::strstr(reason, "__ubsan_") == nullptr),
                  "the kernel library ", name,
                  " was built with a sanitizer, which this process does not have. Start it with "
                  "`python -m metalops sanitize`, or build the library again without.");
      TORCH_CHECK(false, "cannot load the kernel library ", name, ": ",
                  reason ? reason : "unknown");
    }
    handle = loaded;
    const auto* library = static_cast<const msl::abi::Library*>(dlsym(handle, "metalops_library"));
    bind = reinterpret_cast<decltype(bind)>(dlsym(handle, "metalops_bind"));
    TORCH_CHECK(library != nullptr && bind != nullptr, name,
                " is not a kernel library of metalops");
    TORCH_CHECK(library->abi_version == msl::abi::kAbiVersion, "the kernel library ", name,
                " was built for version ", library->abi_version,
                " of the kernel interface; this metalops has version ", msl::abi::kAbiVersion,
                ". Build it again.");
    const uint32_t missing = library->cpu_features & ~cpu_features();
    TORCH_CHECK(missing == 0, "the kernel library ", name, " was compiled for a CPU with ",
                describe_cpu_features(missing),
                ", which this CPU lacks. Build it again on this machine.");
    const auto* sanitizer = static_cast<const char*>(dlsym(handle, "metalops_sanitizer"));
    check_sanitizer(name, sanitizer);
    sanitized = sanitizer != nullptr;
    if (sanitized) add_sanitized_module();
    table = library;
    for (uint32_t i = 0; i < table->kernel_count; ++i) {
      kernels.emplace(table->kernels[i].name, &table->kernels[i]);
    }
    for (uint32_t i = 0; i < table->left_out_count; ++i) {
      left_out.emplace(table->left_out[i].name, table->left_out[i].part);
    }
    if (const auto* notes = static_cast<const msl::abi::Notes*>(dlsym(handle, "metalops_notes"))) {
      for (const auto* entry = notes->absent; entry->name != nullptr; ++entry) {
        absent.emplace(entry->name, entry->reason);
      }
      kernel_notes.add(*notes, kernels);
    }
    const auto* source_begin = static_cast<const char*>(dlsym(handle, "metalops_source"));
    const auto* source_end = static_cast<const char*>(dlsym(handle, "metalops_source_end"));
    if (source_begin != nullptr && source_end != nullptr) {
      source = {source_begin, size_t(source_end - source_begin)};
    }
    registry.add(*table, source);
    note_code(*table);
    watch_kernels();
  }

  Library* compiled_part(uint32_t number) {
    std::lock_guard<ForkSafeMutex> lock(mutex);
    const auto found = parts.find(number);
    return found == parts.end() ? nullptr : found->second.get();
  }

  std::vector<std::string> names_of_part(uint32_t number) const {
    std::vector<std::string> names;
    for (uint32_t i = 0; i < table->left_out_count; ++i) {
      if (table->left_out[i].part == number) names.emplace_back(table->left_out[i].name);
    }
    return names;
  }

  // Returns a part of the kernels that are left out, compiled the first time.
  Library& part(uint32_t number) {
    if (Library* const found = compiled_part(number)) return *found;
    auto made = compiled_from({source, table->language, values}, names_of_part(number), "auto");
    // The first of several threads to finish wins.
    std::lock_guard<ForkSafeMutex> lock(mutex);
    return *parts.emplace(number, std::move(made)).first->second;
  }

  void add_sanitized_module() {
    Module module;
    module.base = base_of(dlsym(handle, "metalops_sanitizer"));
    module.file = path;
    module.positions = dlsym(handle, "metalops_positions");
    if (path.empty()) {
      std::string name = std::filesystem::temp_directory_path() / "metalops-XXXXXX";
      const int descriptor = mkstemp(name.data());
      TORCH_CHECK(descriptor >= 0, "cannot write a kernel library to ", name, ": ",
                  std::strerror(errno));
      on_disk = std::move(name);
      write_all(descriptor, *data);
      close(descriptor);
      module.file = on_disk;
    }
    sanitized_modules.add(std::move(module));
  }
};

std::shared_ptr<Library> (*compile_left_out)(std::string_view source, uint32_t language,
                                             const std::vector<std::string>& kernels,
                                             const char* engines) = nullptr;
void (*begin_left_out)(std::string_view source, uint32_t language,
                       const std::vector<std::string>& kernels) = nullptr;

Library::~Library() = default;

std::shared_ptr<Library> Library::open(const std::string& path) {
  std::shared_ptr<Library> library(new Library);
  library->impl_ = std::make_unique<Impl>();
  library->impl_->path = path;
  // A name without a slash would be looked up in the system's library directories.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  check_complete(file);
  library->impl_->take(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL), path);
  library->impl_->bind(&runtime());
  return library;
}

std::shared_ptr<Library> Library::from_bytes(const void* data, size_t size) {
  std::shared_ptr<Library> library(new Library);
  library->impl_ = std::make_unique<Impl>();
  library->impl_->data = std::make_shared<const std::string>(static_cast<const char*>(data), size);
  library->impl_->take(load_copy(*library->impl_->data), "in memory");
  library->impl_->bind(&runtime());
  return library;
}

const msl::abi::Library& Library::table() const { return *impl_->table; }

bool Library::has(const std::string& name) const {
  return impl_->kernels.count(name) != 0 || impl_->left_out.count(name) != 0;
}

const Kernel* Library::find(const std::string& name) const {
  const auto left_out = impl_->left_out.find(name);
  if (left_out != impl_->left_out.end()) return impl_->part(left_out->second).find(name);
  const auto found = impl_->kernels.find(name);
  return found == impl_->kernels.end() ? nullptr : found->second;
}

const Kernel* Library::describe(const std::string& name) const {
  const auto found = impl_->kernels.find(name);
  return found == impl_->kernels.end() ? find(name) : found->second;
}

void Library::begin(const std::string& name) const {
  const auto left_out = impl_->left_out.find(name);
  if (left_out == impl_->left_out.end() || begin_left_out == nullptr) return;
  if (impl_->compiled_part(left_out->second) != nullptr) return;
  begin_left_out(impl_->source, table().language, impl_->names_of_part(left_out->second));
}

std::string Library::why_absent(const std::string& name) const {
  const auto found = impl_->absent.find(name);
  return found == impl_->absent.end() ? "" : found->second;
}

std::string_view Library::source() const { return impl_->source; }

std::vector<std::string> Library::names() const {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < table().kernel_count; ++i) names.emplace_back(table().kernels[i].name);
  for (uint32_t i = 0; i < table().left_out_count; ++i) {
    const char* name = table().left_out[i].name;
    if (impl_->kernels.count(name) == 0) names.emplace_back(name);
  }
  return names;
}

std::shared_ptr<Library> Library::specialise(const std::vector<ConstantValue>& values) const {
  std::shared_ptr<Library> library(new Library);
  library->impl_ = std::make_unique<Impl>();
  Impl& impl = *library->impl_;
  impl.path = impl_->path;
  impl.data = impl_->data;
  impl.take(load_copy(impl.data != nullptr ? *impl.data : read_file(impl.path)),
            impl.path.empty() ? "in memory" : impl.path);
  for (const ConstantValue& value : values) {
    bool found = false;
    for (uint32_t i = 0; i < impl.table->function_constant_count; ++i) {
      const auto& constant = impl.table->function_constants[i];
      if (constant.index != value.index) continue;
      TORCH_CHECK_VALUE(constant.bytes == value.bytes.size(), "function constant ", value.index,
                        " ('", constant.name, "') has ", constant.bytes, " bytes; the value has ",
                        value.bytes.size());
      std::memcpy(constant.value, value.bytes.data(), value.bytes.size());
      *constant.is_defined = 1;
      found = true;
    }
    TORCH_CHECK_VALUE(found, "the kernel library has no function constant ", value.index);
  }
  impl.values = values;
  // Called once the values are in place: it computes the constants that depend on them.
  impl.bind(&runtime());
  return library;
}

}  // namespace metalops::exec
