// See gil.h.
#include "metal/gil.h"

#include <Python.h>

namespace metalops {

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
