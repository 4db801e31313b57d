// Locks that get along with Python's global interpreter lock (GIL) and with fork.
#pragma once
#include <mutex>

namespace metalops {

// Unlocked in a forked child, where the thread that held it does not exist. Recursive because
// Python code that runs while it is held (a signal handler, say) may come back to it. Lives as long
// as the process.
class GilSafeMutex {
 public:
  GilSafeMutex();
  GilSafeMutex(const GilSafeMutex&) = delete;
  GilSafeMutex& operator=(const GilSafeMutex&) = delete;

 private:
  friend class GilSafeLock;
  std::recursive_mutex mutex_;
};

// Holds a mutex whose other holders may be waiting for the GIL (they run Python code, or look for
// Ctrl-C). A thread that has the GIL lets go of it while it waits, so that the two locks cannot
// block each other.
class GilSafeLock {
 public:
  explicit GilSafeLock(GilSafeMutex& mutex) : mutex_(mutex.mutex_) {
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
