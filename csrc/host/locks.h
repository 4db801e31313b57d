// Fork-safe locks of the software device. A forked child has only the forking thread: work of other
// threads is left half done there, and a lock that one of them held would stay locked for ever. So
// every lock is one of those below, which the fork handlers know.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>

namespace metalops {

// Base class of locks: its behaviour at fork().
class ForkAware {
 public:
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

 protected:
  // `waits`: fork() takes the lock first, so that a child finds the guarded data consistent.
  // Otherwise a lock that another thread holds is simply free in the child.
  explicit ForkAware(bool waits) : waits_(waits) {}

  // Registers the lock with the fork handlers. It is the last member of every lock, so that fork()
  // sees only complete ones. Another thread may fork at any moment, also while a lock is being made
  // or destroyed.
  class Known {
   public:
    explicit Known(ForkAware& lock);
    ~Known();
    Known(const Known&) = delete;

   private:
    ForkAware& lock_;
  };

  virtual bool try_to_take() = 0;
  virtual void give_back() = 0;
  virtual void
  make_free() = 0;  // in the child: frees a lock that another thread of the parent held

 private:
  friend class ForkHandlers;
  const bool waits_;
  bool taken_ = false;
  ForkAware* previous_ = nullptr;
  ForkAware* next_ = nullptr;
};

// A mutex for short sections that neither wait for anything nor run Python.
class ForkSafeMutex final : public ForkAware {
 public:
  ForkSafeMutex() : ForkAware(/*waits=*/true) {}
  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  bool try_to_take() override { return mutex_.try_lock(); }
  void give_back() override { mutex_.unlock(); }
  void make_free() override {}
  std::mutex mutex_;
  const Known known_{*this};
};

// A mutex for long sections in which Python may run: a waiting thread releases the GIL, which the
// holder may need. Recursive, because Python code that runs in the section (a signal handler, for
// example) may enter it again. The guarded data must be valid for a forked child at any moment;
// changes that take several steps need a ForkSafeMutex of their own.
class GilSafeMutex final : public ForkAware {
 public:
  GilSafeMutex() : ForkAware(/*waits=*/false) {}
  void lock() {
    if (!try_lock()) lock_contended();
  }
  bool try_lock() {
    if (owner_.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
      if (!mutex_.try_lock()) return false;
      owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ++depth_;
    return true;
  }
  void unlock() {
    if (--depth_ != 0) return;
    owner_.store(std::thread::id(), std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  void lock_contended();
  bool try_to_take() override { return try_lock(); }
  void give_back() override { unlock(); }
  void make_free() override;
  // Not a std::recursive_mutex: a child cannot unlock one, because its thread id differs.
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  uint32_t depth_ = 0;
  const Known known_{*this};
};

// RAII: releases the GIL, if this thread holds it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;

 private:
  void* const python_thread_;
};

// A mutex of torch's inside an object of ours that lives as long as the process.
class ForkSafeReference final : public ForkAware {
 public:
  explicit ForkSafeReference(std::mutex& mutex) : ForkAware(/*waits=*/false), mutex_(mutex) {}

 private:
  bool try_to_take() override { return mutex_.try_lock(); }
  void give_back() override { mutex_.unlock(); }
  void make_free() override;
  std::mutex& mutex_;
  const Known known_{*this};
};

// Returns true if this process is a forked child of one that had the device.
bool is_forked_child();

}  // namespace metalops
