// The interface between the build helper and <metalops/library.h>: for every .metal file the helper
// generates a translation unit with one KernelSource. Extensions do not use this header themselves.
#pragma once
#include <atomic>

namespace metalops::detail {

struct OpenedLibrary;

// A node of the list that library.cpp of the same extension keeps. It lives as long as the
// extension.
class __attribute__((visibility("hidden"))) KernelSource {
 public:
  // family: base name of the file. text: its flattened source. prebuilt: path of the library that
  // was built ahead of time, relative to the extension's folder; empty if there is none.
  KernelSource(const char* family, const char* text, const char* prebuilt);
  KernelSource(const KernelSource&) = delete;
  KernelSource& operator=(const KernelSource&) = delete;

  const char* const family;
  const char* const text;
  const char* const prebuilt;
  KernelSource* const next;
  std::atomic<OpenedLibrary*> opened{nullptr};  // set at the first use
};

}  // namespace metalops::detail
