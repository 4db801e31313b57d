// The locks of the software device. A forked child has the forking thread only: what other threads
// were doing is left half done there, and a lock that one of them held would stay locked for ever.
// So every lock is one of those below, which fork() knows.
#pragma once
#include <atomic>
#include <mutex>
#include <thread>

namespace metalops {

// What fork() does with a lock.
class ForkAware {
 public:
  ForkAware(const ForkAware&) = delete;
  ForkAware& operator=(const ForkAware&) = delete;

 protected:
  // waits: fork() takes the lock first, so that a child finds what it guards as it should be. Else
  // a lock that another thread holds is simply free in the child.
  explicit ForkAware(bool waits) : waits_(waits) {}

  // The last member of every lock: fork() knows the lock while all of it is there. Another thread
  // may fork at any moment, also while a lock is being made or destroyed.
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
  virtual void make_free() = 0;  // in the child, what another thread of the parent holds

 private:
  friend class ForkHandlers;
  const bool waits_;
  bool taken_ = false;
  ForkAware* previous_ = nullptr;
  ForkAware* next_ = nullptr;
};

// For short sections that neither wait for anything nor run Python.
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

// For long sections, in which Python may run: whoever waits for it lets go of Python's global
// interpreter lock (GIL), which the holder may need. Recursive, because Python code that runs
// meanwhile (a signal handler, say) may come back to it. What it guards must be right for a forked
// child at any moment; changes that are not done at once need a ForkSafeMutex of their own.
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
  // Not a std::recursive_mutex: a child cannot unlock one, because it has another thread id.
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  uint32_t depth_ = 0;
  const Known known_{*this};
};

// A mutex of torch's that is part of an object of ours, which lives as long as the process.
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

// Whether this process is a forked child of one that had the device.
bool is_forked_child();

}  // namespace metalops
