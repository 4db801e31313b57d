// Calls the Python front end and translates its exceptions.
#include <metal/compile.h>

#include <pybind11/pybind11.h>

namespace metalops {
namespace py = pybind11;

std::shared_ptr<exec::Library> compile_metal(const std::string& source) {
  TORCH_CHECK(Py_IsInitialized(), "Compiling Metal source needs a running Python interpreter");
  std::string path;
  {
    py::gil_scoped_acquire gil;
    try {
      py::object result = py::module_::import("metalops.msl").attr("compile_source")(source);
      path = py::module_::import("os").attr("fspath")(result).cast<std::string>();
    } catch (py::error_already_set& error) {
      const bool wrong_source = error.matches(PyExc_SyntaxError);
      std::string message;
      if (wrong_source) message = py::str(error.value().attr("msg")).cast<std::string>();
      error.restore();
      python_error raised;
      raised.persist();
      if (wrong_source) throw MetalSyntaxError(std::move(message), std::move(raised));
      throw raised;
    }
  }
  return exec::Library::open(path);
}

}  // namespace metalops
