// Python module metalops._C. Loading it registers the operators; its functions serve `python -m
// metalops info` and metalops.ops.
#include <csrc/ops/attention/attention_aten.h>
#include <csrc/ops/common/fixes.h>
#include <metalops/library.h>
#include <metalops/python_call.h>
#include <metalops/stock.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <csrc/python/functor.h>
#ifdef __APPLE__
#include <csrc/macos/command_time.h>
#include <csrc/macos/textured_kernel.h>
#endif

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
      "Every kernel file of this extension with the path of its prebuilt library, where it was "
      "opened from "
      "('prebuilt', 'source', or '' if nothing has used it) and why not from the prebuilt library. "
      "open: open those that nothing has used.");
  m.def(
      "shared_overloads",
      [] {
        std::vector<std::pair<std::string, std::string>> result;
        for (const auto& overload : metalops::shared_overloads()) {
          result.emplace_back(overload.name, overload.reason);
        }
        return result;
      },
      "(overload, reason) of every ATen overload of which torch has an MPS kernel too. reason: why "
      "that of metalops took its place; empty where torch's stayed.");
  m.def("unknown_overloads", &metalops::unknown_overloads,
        "The ATen overloads that metalops has kernels for and that this torch does not know.");
  m.def("fix_names", &metalops::fix_names, "The names of metalops.fixes that have kernels.");
  m.def("turn_fix", &metalops::turn_fix, py::arg("name"), py::arg("on"),
        "Turns a fix on or off. Raises ValueError for an unknown name.");
  m.def("fixed_overloads", &metalops::fixed_overloads, py::arg("name"),
        "The ATen overloads that a fix which is on replaces; those of one that is off are none.");
  py::enum_<metalops::AttentionUse>(m, "AttentionUse",
                                    "Which calls of scaled_dot_product_attention metalops serves.")
      .value("ALWAYS", metalops::AttentionUse::kAlways, "All that it can.")
      .value("UNLESS_FUSED", metalops::AttentionUse::kUnlessFused,
             "But for those that stock MPS has a kernel for that does not materialise the scores.")
      .value("UNLESS_SMALL", metalops::AttentionUse::kUnlessSmall,
             "But for those whose scores take little memory.")
      .value("NEVER", metalops::AttentionUse::kNever, "None.");
  m.def("set_attention_use", &metalops::set_attention_use, py::arg("use"),
        "For the whole process. Returns what it was before.");
  m.def("may_serve_attention", &metalops::may_serve_attention,
        "False if torch is to serve every call: by the choice, or within sdpa_kernel(MATH).");
  m.def("direct_call", &metalops::direct_call, py::arg("name"), py::arg("fallback"),
        py::arg("numbers") = false,
        "A function that calls the operator `name` (\"metalops::...\") like a built-in one; see "
        "<metalops/python_call.h>.");
  metalops::bind_functor(m);
#ifdef __APPLE__
  metalops::bind_textured_kernel(m);
  metalops::bind_command_time(m);
#endif
}
