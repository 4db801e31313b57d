// The Python module metalops._C. Loading it registers the operators; what it offers to Python is for
// `python -m metalops info` and metalops.ops.
#include <metalops/library.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  m.doc() = "The operators of metalops.";
  m.def(
      "kernel_libraries",
      [](bool open) {
        py::list result;
        for (const auto& state : metalops::libraries()) {
          if (open) {
            py::gil_scoped_release release;
            metalops::library(state.family);
          }
        }
        for (const auto& state : metalops::libraries()) {
          py::dict entry;
          entry["family"] = state.family;
          entry["prebuilt"] = state.prebuilt;
          entry["origin"] = state.origin;
          entry["problem"] = state.problem;
          result.append(entry);
        }
        return result;
      },
      py::arg("open") = false,
      "Every kernel file of this extension with the path of its prebuilt library, where it was opened from "
      "('prebuilt', 'source', or '' if nothing has used it) and why not from the prebuilt library. "
      "open: open those that nothing has used.");
  m.def(
      "call_with_warnings",
      [](const py::function& function, const py::args& args, const py::kwargs& kwargs) {
        try {
          torch::PyWarningHandler handler;
          try {
            return function(*args, **kwargs);
          } catch (...) {
            handler.set_in_exception();
            throw;
          }
        } catch (python_error& error) {  // a warning that a filter made an error
          error.restore();
          throw py::error_already_set();
        }
      },
      "Calls a function; what torch's C++ code warns of in it becomes Python warnings, as in torch's own functions.");
}
