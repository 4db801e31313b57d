// See gil.h.
#include "metal/gil.h"

#include <Python.h>
#include <pthread.h>

#include <new>
#include <vector>

namespace metalops {
namespace {

std::vector<std::recursive_mutex*>& mutexes() {
  static auto* const all = new std::vector<std::recursive_mutex*>;
  return *all;
}

void unlock_all_in_child() {
  for (std::recursive_mutex* mutex : mutexes()) new (mutex) std::recursive_mutex;
}

}  // namespace

GilSafeMutex::GilSafeMutex() {
  static std::mutex guard;
  std::lock_guard<std::mutex> lock(guard);
  if (mutexes().empty()) pthread_atfork(nullptr, nullptr, &unlock_all_in_child);
  mutexes().push_back(&mutex_);
}

void GilSafeLock::lock_contended() {
  if (Py_IsInitialized() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    mutex_.lock();
    PyEval_RestoreThread(state);
  } else {
    mutex_.lock();
  }
}

}  // namespace metalops
