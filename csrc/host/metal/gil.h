// Locks that get along with Python's global interpreter lock (GIL).
#pragma once
#include <mutex>

namespace metalops {

// Holds a mutex whose other holders may be waiting for the GIL (they run Python code, or look for
// Ctrl-C). A thread that has the GIL lets go of it while it waits, so that the two locks cannot
// block each other. The mutex is recursive because Python code that runs while it is held (a signal
// handler, say) may come back here.
class GilSafeLock {
 public:
  explicit GilSafeLock(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (!mutex_.try_lock()) lock_contended();
  }
  ~GilSafeLock() { mutex_.unlock(); }
  GilSafeLock(const GilSafeLock&) = delete;
  GilSafeLock& operator=(const GilSafeLock&) = delete;

 private:
  void lock_contended();
  std::recursive_mutex& mutex_;
};

}  // namespace metalops
