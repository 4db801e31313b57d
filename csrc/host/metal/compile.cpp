// Calls the Python front end and translates its exceptions.
#include <metal/compile.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

namespace metalops {
namespace py = pybind11;

namespace {

constexpr const char* kFrontEnd = "metalops.msl";

// Runs code that calls Python.
template <typename Body>
void in_python(const Body& body) {
  TORCH_CHECK(can_compile(), "Compiling Metal source needs a running Python interpreter");
  py::gil_scoped_acquire gil;
  try {
    body();
  } catch (py::error_already_set& error) {
    const bool wrong_source = error.matches(PyExc_SyntaxError);
    std::string message;
    if (wrong_source) message = py::str(error.value().attr("msg")).cast<std::string>();
    error.restore();
    python_error raised;
    raised.persist();
    if (!wrong_source) throw raised;
    throw MetalSyntaxError(std::move(message),
                           std::make_shared<const python_error>(std::move(raised)));
  }
}

// Calls a function of a module of metalops, and take(its result). `arguments` returns the
// function's arguments as a tuple.
template <typename Arguments, typename Take>
void call(const char* module, const char* function, const Arguments& arguments, const Take& take) {
  in_python([&] { take(py::object(py::module_::import(module).attr(function)(*arguments()))); });
}

// Calls a function that returns the path of a library, and opens it.
template <typename Arguments>
std::shared_ptr<exec::Library> compile(const char* module, const char* function,
                                       const Arguments& arguments) {
  std::string path;
  call(module, function, arguments, [&](const py::object& result) {
    path = py::module_::import("os").attr("fspath")(result).cast<std::string>();
  });
  return exec::Library::open(path);
}

py::tuple arguments_of(std::string_view source, uint32_t language,
                       const std::vector<std::string>& kernels) {
  return py::make_tuple(py::bytes(source.data(), source.size()), language, kernels);
}

}  // namespace

std::shared_ptr<exec::Library> compile_metal(const std::string& source) {
  return compile(kFrontEnd, "compile_source", [&] { return py::make_tuple(source); });
}

std::shared_ptr<exec::Library> compile_metal(const std::string& source, uint32_t language,
                                             bool fast_math) {
  return compile("metalops._metallib", "compile_with_options",
                 [&] { return py::make_tuple(source, language, fast_math); });
}

std::shared_ptr<exec::Library> compile_part(std::string_view source, uint32_t language,
                                            const std::string& name) {
  return compile("metalops._metallib", "compile_source", [&] {
    return py::make_tuple(py::bytes(source.data(), source.size()), language, name);
  });
}

std::string format_source(const std::string& source, const std::vector<std::string>& parameters) {
  std::string result;
  in_python([&] {
    const py::tuple values = py::cast(parameters);
    result = py::str(py::str(source).attr("format")(*values)).cast<std::string>();
  });
  return result;
}

bool can_compile() { return Py_IsInitialized() != 0; }

std::string call_capture(const char* function, const std::vector<std::string>& arguments) {
  if (!can_compile()) return "traces are recorded in programs with a Python interpreter only";
  const py::gil_scoped_acquire gil;
  try {
    py::module_::import("metalops.trace.capture").attr(function)(*py::tuple(py::cast(arguments)));
    return "";
  } catch (const py::error_already_set& raised) {
    return raised.what();
  }
}

std::shared_ptr<exec::Library> compile_left_out(std::string_view source, uint32_t language,
                                                const std::vector<std::string>& kernels,
                                                const char* engines) {
  try {
    return compile(kFrontEnd, "compile_left_out", [&] {
      return arguments_of(source, language, kernels) + py::make_tuple(engines);
    });
  } catch (const MetalSyntaxError& error) {
    throw python_error(error.raised());  // whoever launches the kernel sees file, line and column
  }
}

void begin_left_out(std::string_view source, uint32_t language,
                    const std::vector<std::string>& kernels) {
  call(
      kFrontEnd, "begin_left_out", [&] { return arguments_of(source, language, kernels); },
      [](const py::object&) {});
}

std::vector<int64_t> argument_layout(std::string_view source, uint32_t language,
                                     const std::string& kernel, uint32_t index) {
  std::vector<int64_t> layout;
  call(
      "metalops._shaders.argument_layout", "argument_layout",
      [&] {
        return py::make_tuple(py::bytes(source.data(), source.size()), language, kernel, index);
      },
      [&](const py::object& result) { layout = result.cast<std::vector<int64_t>>(); });
  return layout;
}

}  // namespace metalops
