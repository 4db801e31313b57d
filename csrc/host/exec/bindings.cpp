// Python bindings of the execution engines: kernel libraries and single launches, as the tests use
// them. Users reach kernels through torch.mps.compile_shader and the operators (csrc/host/metal).
#include <c10/util/Exception.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch_internals.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include <exec/cpu_features.h>
#include <exec/exec.h>
#include <exec/in_kernel.h>
#include <exec/sanitize/findings.h>
#include <exec/sanitize/shuffled_order.h>

namespace metalops {
namespace {

namespace py = pybind11;
using exec::Engine;
using exec::Launch;
using exec::Library;
using msl::abi::kMaxBuffers;

// Runs Python's signal handlers; raises what they raise (KeyboardInterrupt for Ctrl-C).
void check_python_interrupt() {
  if (Py_IsInitialized() == 0) return;
  py::gil_scoped_acquire gil;
  const internals::OutsideOfOperators keys;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// For in_kernel.h: called by threads that need not be Python's.
void when_interrupt_is_handled(void (*call)()) {
  if (Py_IsInitialized() == 0) return;
  Py_AddPendingCall(
      [](void* call) {
        reinterpret_cast<void (*)()>(call)();
        return 0;
      },
      reinterpret_cast<void*>(call));
}

// Returns false if a handler other than Python's own is set, which may let the launch go on.
bool is_interrupt_fatal() {
  if (Py_IsInitialized() == 0) return false;
  py::gil_scoped_acquire gil;
  const py::module_ signal = py::module_::import("signal");
  return signal.attr("getsignal")(signal.attr("SIGINT")).is(signal.attr("default_int_handler"));
}

// Converts findings to the Python classes of metalops.debug.
py::list python_findings(const std::vector<exec::Finding>& findings) {
  const py::object make = py::module_::import("metalops.debug").attr("Finding");
  py::list list;
  for (const exec::Finding& finding : findings) {
    list.append(make(finding.kind, finding.message, finding.warning));
  }
  return list;
}

void raise_python_findings(const std::vector<exec::Finding>& findings) {
  if (Py_IsInitialized() == 0) return;
  py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("metalops.debug").attr("SanitizerError");
  PyErr_SetObject(type.ptr(), type(python_findings(findings)).ptr());
  python_error error;
  error.persist();
  throw error;
}

void warn_python_finding(const exec::Finding& finding) {
  if (Py_IsInitialized() == 0) return;
  py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("metalops.debug").attr("SanitizerWarning");
  if (PyErr_WarnEx(type.ptr(), finding.message.c_str(), 1) != 0) {
    python_error error;  // warnings are errors
    error.persist();
    throw error;
  }
}

void bind_sanitizers(py::module_& m) {
  exec::raise_findings = &raise_python_findings;
  exec::warn_of_finding = &warn_python_finding;
  m.def(
      "set_sanitizer",
      [](const std::string& mode) {
        using exec::SanitizeMode;
        const auto before = exec::sanitize_mode();
        exec::set_sanitize_mode(mode == "address"  ? SanitizeMode::kAddress
                                : mode == "thread" ? SanitizeMode::kThread
                                                   : SanitizeMode::kOff);
        return before == SanitizeMode::kAddress  ? "address"
               : before == SanitizeMode::kThread ? "thread"
                                                 : "";
      },
      py::arg("mode"),
      "Checks launches under 'address' or 'thread', or with '' under none; returns what was "
      "before.");
  m.def("set_sanitizer_halt", &exec::set_sanitize_halt, py::arg("halt"),
        "Whether a launch with findings raises at once; returns what was before.");
  m.def("sanitizer_seed", &exec::shuffle_seed, "The seed of the order of threads.");
  m.def("set_sanitizer_seed", &exec::set_shuffle_seed, py::arg("seed"),
        "Starts the sequence of orders in which launches run their threads over.");
  m.def("set_address_reader", &exec::set_address_reader, py::arg("path"),
        "The program that reads debug information, called as addr2line is.");
  m.def("raise_kept_findings", [] {
    py::gil_scoped_release no_gil;
    exec::raise_kept_findings();
  });
  // Sets the exit status from C++, because Python's own exit handlers cannot change it.
  m.def("fail_at_exit", [] { std::atexit([] { _exit(1); }); });
  m.def("take_kept_findings", [] { return python_findings(exec::take_kept_findings()); });
}

Engine parse_engine(const std::string& name) {
  if (name == "auto") return Engine::kAutomatic;
  if (name == "loop") return Engine::kLoop;
  if (name == "group") return Engine::kGroup;
  if (name == "fiber") return Engine::kFiber;
  TORCH_CHECK_VALUE(false, "engine is '", name, "'; it must be 'auto', 'loop', 'group' or 'fiber'");
}

// Returns the engines that can run the kernel, the default one first.
std::vector<std::string> engines_of(const exec::Kernel& kernel) {
  std::vector<std::string> engines;
  if (kernel.loop != nullptr) engines.push_back("loop");
  if (kernel.group != nullptr) engines.push_back("group");
  // At the latest when it is launched there, it is compiled for fibers.
  if (kernel.thread != nullptr || !engines.empty()) engines.push_back("fiber");
  return engines;
}

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::kLoop:
      return "loop";
    case Engine::kGroup:
      return "group";
    case Engine::kFiber:
      return "fiber";
    default:
      return "auto";
  }
}

// Parses an int or up to three of them; missing ones are 1.
void parse_extent(const py::object& value, const char* what, uint32_t (&extent)[3]) {
  std::fill(extent, extent + 3, 1u);
  if (py::isinstance<py::int_>(value)) {
    extent[0] = value.cast<uint32_t>();
    return;
  }
  const auto values = value.cast<std::vector<uint32_t>>();
  TORCH_CHECK_VALUE(!values.empty() && values.size() <= 3, what, " must have 1 to 3 entries");
  std::copy(values.begin(), values.end(), extent);
}

// The textures and samplers of a launch.
struct Handles {
  std::array<const msl::abi::Texture*, msl::abi::kMaxTextures> textures = {};
  std::array<msl::abi::u64, msl::abi::kMaxSamplers> samplers = {};
  std::vector<std::unique_ptr<msl::abi::Texture>> described;
};

// Where the levels of a description begin, of which only those that exist are in its bytes.
constexpr size_t kLevelsAt = offsetof(msl::abi::Texture, levels);

// described: the bytes of each texture, addresses included, by its index; empty for none.
Handles handles_of(const exec::Kernel& kernel, const std::vector<std::string>& described,
                   const std::vector<uint64_t>& samplers) {
  TORCH_CHECK_VALUE(
      described.size() <= msl::abi::kMaxTextures && samplers.size() <= msl::abi::kMaxSamplers,
      "too many textures or samplers");
  Handles handles;
  std::copy(samplers.begin(), samplers.end(), handles.samplers.begin());
  for (size_t i = 0; i < described.size(); ++i) {
    if (described[i].empty()) continue;
    auto texture = std::make_unique<msl::abi::Texture>();
    TORCH_CHECK_VALUE(described[i].size() >= kLevelsAt && described[i].size() <= sizeof(*texture),
                      "not the description of a texture");
    std::memcpy(static_cast<void*>(texture.get()), described[i].data(), described[i].size());
    TORCH_CHECK_VALUE(
        described[i].size() == kLevelsAt + texture->level_count * sizeof(msl::abi::TextureLevel),
        "not the description of a texture of ", texture->level_count, " levels");
    handles.textures[i] = texture.get();
    handles.described.push_back(std::move(texture));
  }
  const exec::KernelNotes* notes = exec::notes_of(kernel);
  for (uint32_t a = 0; a < kernel.argument_count; ++a) {
    const auto& argument = kernel.arguments[a];
    if (argument.kind != msl::abi::ArgumentKind::kTexture) continue;
    if ((notes != nullptr && !notes->is_on(a)) || !exec::is_used(argument)) continue;
    for (uint32_t t = 0; t < argument.texture->count; ++t) {
      const msl::abi::Texture* texture = handles.textures.at(argument.index + t);
      TORCH_CHECK(texture != nullptr, "kernel '", kernel.name, "': nothing is bound to texture ",
                  argument.index + t);
      TORCH_CHECK_TYPE(texture->kind == argument.texture->kind, "kernel '", kernel.name,
                       "': texture ", argument.index + t, " is of another kind");
    }
  }
  return handles;
}

void launch(const Library& library, const std::string& name, const py::list& buffers,
            const py::object& grid, const py::object& group,
            const std::map<uint32_t, uint32_t>& threadgroup_bytes, const std::string& engine,
            int threads, const std::vector<std::string>& textures,
            const std::vector<uint64_t>& samplers) {
  const exec::Kernel* kernel = library.find(name);
  if (kernel == nullptr) {
    const std::string reason = library.why_absent(name);
    throw py::key_error("no kernel '" + name + "' in the library" +
                        (reason.empty() ? "" : ", because of " + reason));
  }
  TORCH_CHECK_VALUE(buffers.size() <= kMaxBuffers, "at most ", kMaxBuffers, " buffers");

  Launch launch = {};
  for (size_t i = 0; i < buffers.size(); ++i) {
    const py::handle buffer = buffers[i];
    if (buffer.is_none()) continue;
    if (THPVariable_Check(buffer.ptr())) {
      const at::Tensor& tensor = THPVariable_Unpack(buffer.ptr());
      launch.buffers[i] = tensor.data_ptr();
      launch.buffer_bytes[i] =
          tensor.storage().nbytes() - tensor.storage_offset() * tensor.element_size();
    } else {
      char* bytes = nullptr;
      Py_ssize_t length = 0;
      if (PyBytes_AsStringAndSize(buffer.ptr(), &bytes, &length) != 0)
        throw py::error_already_set();
      launch.buffers[i] = bytes;
      launch.buffer_bytes[i] = length;
    }
  }
  for (uint32_t a = 0; a < kernel->argument_count; ++a) {
    const auto& argument = kernel->arguments[a];
    if (argument.tensor == nullptr || size_t(argument.index) >= buffers.size()) continue;
    TORCH_CHECK_TYPE(launch.buffer_bytes[argument.index] == sizeof(msl::abi::Tensor), "kernel '",
                     name, "': argument '", argument.name, "' is a tensor, for which buffer ",
                     argument.index, " holds a description of ", sizeof(msl::abi::Tensor),
                     " bytes");
  }
  for (const auto& [index, bytes] : threadgroup_bytes) {
    TORCH_CHECK_VALUE(index < kMaxBuffers, "no threadgroup argument ", index);
    launch.threadgroup_bytes[index] = bytes;
  }
  const Handles handles = handles_of(*kernel, textures, samplers);
  launch.textures = handles.textures.data();
  launch.samplers = handles.samplers.data();
  parse_extent(grid, "grid", launch.grid);
  parse_extent(group, "group", launch.group);
  const Engine chosen = parse_engine(engine);
  py::gil_scoped_release no_gil;
  exec::run(*kernel, launch, chosen, threads);
}

// The Python function called in place of launches; null when there is none.
PyObject* python_launch_hook = nullptr;

// A launch that the Python function is handling.
struct HookedLaunch {
  const exec::Kernel& kernel;
  Launch& launch;
  int threads;
  const exec::BoundBuffers* bound;
};

void call_python_launch_hook(const exec::Kernel& kernel, Launch& launch, int threads,
                             const exec::BoundBuffers* bound) {
  py::gil_scoped_acquire gil;
  const internals::OutsideOfOperators keys;
  const py::object hook = py::reinterpret_borrow<py::object>(python_launch_hook);
  hook(HookedLaunch{kernel, launch, threads, bound});
}

// Returns (address, bytes, whether the kernel may write to them) of each bound buffer.
py::list buffers_of(const HookedLaunch& hooked) {
  py::list buffers;
  for (uint32_t a = 0; a < hooked.kernel.argument_count; ++a) {
    const auto& argument = hooked.kernel.arguments[a];
    if (argument.kind == msl::abi::ArgumentKind::kTexture && hooked.bound != nullptr) {
      for (const auto& [index, level] : hooked.bound->textures) {
        if (index - argument.index >= argument.texture->count) continue;
        buffers.append(py::make_tuple(reinterpret_cast<uintptr_t>(level.begin), level.bytes,
                                      argument.writable != 0));
      }
    }
    if (argument.kind != msl::abi::ArgumentKind::kBuffer) continue;
    const void* address = hooked.launch.buffers[argument.index];
    uint64_t bytes = hooked.launch.buffer_bytes[argument.index];
    if (hooked.bound != nullptr) {
      const exec::BoundBuffer& bound = (*hooked.bound)[argument.index];
      if (bound.kind == exec::BoundBuffer::Kind::kHandle) {
        address = bound.begin;
        bytes = bound.bytes;
      }
    }
    if (address == nullptr) continue;
    buffers.append(
        py::make_tuple(reinterpret_cast<uintptr_t>(address), bytes, argument.writable != 0));
  }
  return buffers;
}

// Returns what is known of a buffer, or of a level of a texture.
py::dict entry_of(uint32_t index, bool is_writable, const void* address,
                  const exec::BoundBuffer& bound) {
  using Kind = exec::BoundBuffer::Kind;
  py::dict entry;
  entry["index"] = index;
  entry["writable"] = is_writable;
  entry["is_value"] = bound.kind == Kind::kValue;
  entry["address"] = reinterpret_cast<uintptr_t>(address);
  entry["begin"] = reinterpret_cast<uintptr_t>(bound.begin);
  entry["bytes"] = bound.bytes;
  if (bound.kind == Kind::kTensor) {
    entry["dtype"] = bound.dtype;
    entry["sizes"] = py::tuple(py::cast(bound.sizes));
    entry["strides"] = py::tuple(py::cast(bound.strides));
  }
  return entry;
}

// Returns what is known of each bound buffer that the kernel takes.
py::list arguments_of(const HookedLaunch& hooked) {
  using Kind = exec::BoundBuffer::Kind;
  py::list arguments;
  for (uint32_t a = 0; a < hooked.kernel.argument_count; ++a) {
    const auto& argument = hooked.kernel.arguments[a];
    if (argument.kind != msl::abi::ArgumentKind::kBuffer) continue;
    const void* address = hooked.launch.buffers[argument.index];
    exec::BoundBuffer bound;
    if (hooked.bound != nullptr) bound = (*hooked.bound)[argument.index];
    if (bound.kind == Kind::kHandle) bound = {Kind::kValue, address, sizeof(msl::abi::Tensor)};
    if (bound.kind == Kind::kNothing) {
      bound = {Kind::kMemory, address, hooked.launch.buffer_bytes[argument.index]};
    }
    arguments.append(entry_of(argument.index, argument.writable != 0, address, bound));
  }
  return arguments;
}

// Returns what is known of each bound texture that the kernel takes.
py::list textures_of(const HookedLaunch& hooked) {
  py::list textures;
  for (uint32_t a = 0; a < hooked.kernel.argument_count; ++a) {
    const auto& argument = hooked.kernel.arguments[a];
    if (argument.kind != msl::abi::ArgumentKind::kTexture || hooked.bound == nullptr) continue;
    for (uint32_t index = argument.index; index < argument.index + argument.texture->count;
         ++index) {
      if (hooked.launch.textures[index] == nullptr) continue;
      msl::abi::Texture texture = *hooked.launch.textures[index];
      py::list levels;
      for (const auto& [owner, bound] : hooked.bound->textures) {
        if (owner != index) continue;
        msl::abi::TextureLevel& level = texture.levels[levels.size()];
        levels.append(entry_of(index, argument.writable != 0, level.texels, bound));
        level.texels = nullptr;
      }
      py::dict entry;
      entry["index"] = index;
      entry["description"] =
          py::bytes(reinterpret_cast<const char*>(&texture),
                    kLevelsAt + texture.level_count * sizeof(msl::abi::TextureLevel));
      entry["levels"] = levels;
      textures.append(entry);
    }
  }
  return textures;
}

py::dict samplers_of(const HookedLaunch& hooked) {
  py::dict samplers;
  for (uint32_t a = 0; a < hooked.kernel.argument_count; ++a) {
    const auto& argument = hooked.kernel.arguments[a];
    if (argument.kind != msl::abi::ArgumentKind::kSampler) continue;
    samplers[py::int_(argument.index)] = hooked.launch.samplers[argument.index];
  }
  return samplers;
}

py::dict threadgroup_bytes_of(const HookedLaunch& hooked) {
  py::dict bytes;
  for (uint32_t a = 0; a < hooked.kernel.argument_count; ++a) {
    const auto& argument = hooked.kernel.arguments[a];
    if (argument.kind != msl::abi::ArgumentKind::kThreadgroup) continue;
    bytes[py::int_(argument.index)] = hooked.launch.threadgroup_bytes[argument.index];
  }
  return bytes;
}

py::dict constants_of(const HookedLaunch& hooked) {
  py::dict constants;
  for (const auto& constant : exec::origin_of(hooked.kernel).constants) {
    constants[py::int_(constant.index)] = py::bytes(constant.bytes);
  }
  return constants;
}

void bind_launch_hook(py::module_& m) {
  py::class_<HookedLaunch>(m, "HookedLaunch", "A launch, as long as the hook runs that it is for.")
      .def_property_readonly("name", [](const HookedLaunch& self) { return self.kernel.name; })
      .def_property_readonly(
          "engines", [](const HookedLaunch& self) { return engines_of(self.kernel); },
          "Those that take the kernel, the one that it runs on by default first.")
      .def_property_readonly(
          "grid", [](const HookedLaunch& self) { return std::to_array(self.launch.grid); })
      .def_property_readonly(
          "group", [](const HookedLaunch& self) { return std::to_array(self.launch.group); })
      .def_property_readonly("threads", [](const HookedLaunch& self) { return self.threads; })
      .def_property_readonly(
          "buffers", &buffers_of,
          "(address, bytes, whether the kernel may write to them) of each that is bound, levels of "
          "textures included.")
      .def_property_readonly(
          "arguments", &arguments_of,
          "A dict for each buffer that the kernel takes: index, writable, is_value "
          "(its bytes come with the launch), address, begin and bytes of the "
          "allocation, and dtype, sizes and strides if it is a tensor.")
      .def_property_readonly(
          "textures", &textures_of,
          "A dict for each texture that the kernel takes: index, description (bytes of an "
          "msl::abi::Texture, without addresses and levels that do not exist) and levels, each "
          "with "
          "what a buffer has in `arguments`.")
      .def_property_readonly("samplers", &samplers_of, "{index: bits} of the kernel's samplers.")
      .def_property_readonly("threadgroup_bytes", &threadgroup_bytes_of,
                             "{index: bytes} of its dynamic threadgroup arguments.")
      .def_property_readonly("constants", &constants_of,
                             "{index: bytes} of the function constants that were given values.")
      .def_property_readonly(
          "source",
          [](const HookedLaunch& self) { return py::bytes(exec::origin_of(self.kernel).source); },
          "The Metal source of its library, deflated by zlib.")
      .def("run",
           torch::wrap_pybind_function_no_gil(
               [](HookedLaunch& self, const std::string& engine, int threads) {
                 exec::run(self.kernel, self.launch, parse_engine(engine), threads, self.bound);
               }),
           py::arg("engine"), py::arg("threads"));
  m.def(
      "take_noted_addresses",
      [] {
        py::list noted;
        for (const auto& [begin, bytes] : exec::take_noted_addresses()) {
          noted.append(py::make_tuple(reinterpret_cast<uintptr_t>(begin), bytes));
        }
        return noted;
      },
      "(address, bytes) of the allocations whose addresses host code has asked for since the last "
      "call, under a launch hook.");
  m.def(
      "set_launch_hook",
      [](const py::object& hook) {
        PyObject* const next = hook.is_none() ? nullptr : hook.inc_ref().ptr();
        exec::launch_hook = next == nullptr ? nullptr : &call_python_launch_hook;
        PyObject* const before = std::exchange(python_launch_hook, next);
        return before == nullptr ? py::none() : py::reinterpret_steal<py::object>(before);
      },
      py::arg("hook"),
      "hook(launch) is called in place of every launch that leaves the engine open, and runs it as "
      "often as it likes; None: there is no hook. Returns what was before.");
}

// Returns one dict per kernel.
py::list kernel_table(const Library& library) {
  static constexpr const char* kKinds[] = {"buffer", "threadgroup", "builtin", "texture",
                                           "sampler"};
  static constexpr const char* kVariations[] = {"none", "uniform_grid", "uniform_group",
                                                "affine_lane", "per_lane"};
  py::list table;
  for (uint32_t k = 0; k < library.table().kernel_count; ++k) {
    const exec::Kernel& kernel = library.table().kernels[k];
    const exec::KernelNotes* notes = exec::notes_of(kernel);
    py::list arguments;
    for (uint32_t a = 0; a < kernel.argument_count; ++a) {
      const auto& argument = kernel.arguments[a];
      py::dict entry;
      entry["name"] = argument.name;
      entry["attribute"] = argument.attribute;
      entry["type"] = argument.type;
      entry["kind"] = kKinds[static_cast<uint32_t>(argument.kind)];
      entry["index"] = argument.index;
      entry["element_bytes"] = argument.element_bytes;
      entry["writable"] = argument.writable != 0;
      entry["is_on"] = notes == nullptr || notes->is_on(a);
      entry["is_used"] = exec::is_used(argument);
      entry["variation"] = kVariations[static_cast<uint32_t>(argument.variation)];
      arguments.append(entry);
    }
    py::dict entry;
    entry["name"] = kernel.name;
    entry["arguments"] = arguments;
    entry["static_threadgroup_bytes"] = kernel.static_threadgroup_bytes;
    entry["max_threads_per_threadgroup"] = kernel.max_threads_per_threadgroup;
    entry["engines"] = engines_of(kernel);
    table.append(entry);
  }
  return table;
}

std::shared_ptr<Library> specialise(const Library& library,
                                    const std::map<int, py::bytes>& values) {
  std::vector<Library::ConstantValue> constants;
  for (const auto& [index, value] : values) constants.push_back({index, std::string(value)});
  return library.specialise(constants);
}

}  // namespace

void bind_exec(py::module_& m) {
  exec::check_interrupt = &check_python_interrupt;
  static constexpr exec::InterruptQuestions questions = {&when_interrupt_is_handled,
                                                         &is_interrupt_fatal};
  exec::interrupt_questions = &questions;
  bind_sanitizers(m);
  bind_launch_hook(m);
  py::class_<Library, std::shared_ptr<Library>>(m, "Library", "A compiled kernel library.")
      .def(py::init(&Library::open), py::arg("path"))
      .def_static(
          "from_bytes",
          [](const py::bytes& data) {
            const std::string_view view = data;
            return Library::from_bytes(view.data(), view.size());
          },
          py::arg("data"))
      .def("names", &Library::names, "The names of its kernels.")
      .def_property_readonly(
          "source", [](const Library& library) { return py::bytes(library.source()); },
          "Its Metal source, preprocessed, deflated by zlib.")
      .def("kernel_table", &kernel_table,
           "What is known about each kernel that the library contains or describes, a dict for "
           "each. "
           "One that is only described is compiled when it is used, and has no engines here.")
      .def_property_readonly(
          "build", [](const Library& library) { return library.table().build; },
          "Compiler and flags it was built with.")
      .def_property_readonly(
          "cpu_features",
          [](const Library& library) {
            return exec::describe_cpu_features(library.table().cpu_features);
          },
          "Instruction set extensions it needs.")
      .def("specialise", &specialise, py::arg("values"),
           "A copy in which function constants have the given values ({index: bytes}).")
      .def("launch", torch::wrap_pybind_function(&launch), py::arg("name"), py::arg("buffers"),
           py::arg("grid"), py::arg("group"),
           py::arg("threadgroup_bytes") = std::map<uint32_t, uint32_t>(),
           py::arg("engine") = "auto", py::arg("threads") = 0,
           py::arg("textures") = std::vector<std::string>(),
           py::arg("samplers") = std::vector<uint64_t>(),
           "Runs one kernel. buffers: tensors (their data at the storage offset), bytes or None; "
           "grid and group: an "
           "int or up to three; threadgroup_bytes: {index: bytes} of dynamic threadgroup "
           "arguments; textures: an msl::abi::Texture each, in bytes, without levels that do not "
           "exist, or empty bytes; samplers: their bits.");
  m.def(
      "prefer_engine",
      [](const std::string& name) { return name_of(exec::prefer_engine(parse_engine(name))); },
      py::arg("name"),
      "Sets the engine of launches that leave it open, and returns the one before; at first it is "
      "METALOPS_ENGINE's.");
  m.def("prefer_product_instructions", &exec::prefer_product_instructions, py::arg("instructions"),
        "Sets the instructions for products of narrow types that kernels use, bits of "
        "ProductInstruction of msl/abi.h, and returns the ones before.");
  m.def("threads_of_last_launch", &exec::threads_of_last_launch,
        "How many CPU threads have worked for this thread's last launch.");
  m.def(
      "cpu_features", [] { return exec::describe_cpu_features(exec::cpu_features()); },
      "Instruction set extensions of this CPU.");
}

}  // namespace metalops
