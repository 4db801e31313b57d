// The fork handlers that take or free every lock, and the slow path of GilSafeMutex.
#include <locks.h>

#include <Python.h>
#include <pthread.h>
#include <sched.h>

#include <memory>

namespace metalops {
namespace {

std::atomic<bool> forked_child{false};

}  // namespace

// The list of all locks. Created with the first lock, while the device is being loaded.
class ForkHandlers {
 public:
  static ForkHandlers& all() {
    static auto* const handlers = new ForkHandlers;
    return *handlers;
  }

  void add(ForkAware& lock) {
    std::lock_guard<std::mutex> guard(mutex_);
    lock.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &lock;
    first_ = &lock;
  }
  void remove(ForkAware& lock) {
    std::lock_guard<std::mutex> guard(mutex_);
    (lock.previous_ != nullptr ? lock.previous_->next_ : first_) = lock.next_;
    if (lock.next_ != nullptr) lock.next_->previous_ = lock.previous_;
  }

 private:
  ForkHandlers() {
    pthread_atfork([] { all().before_fork(); }, [] { all().after_fork(/*is_child=*/false); },
                   [] { all().after_fork(/*is_child=*/true); });
  }

  // Holds no lock between attempts: the holder of a lock may be about to create another one.
  void before_fork() {
    for (mutex_.lock(); !take_all(); mutex_.lock()) {
      mutex_.unlock();
      sched_yield();
    }
  }
  // Takes all locks, or none of those that are waited for: other threads may take several in
  // another order. Returns false if one is taken.
  bool take_all() {
    for (ForkAware* lock = first_; lock != nullptr; lock = lock->next_) {
      lock->taken_ = lock->try_to_take();
      if (lock->taken_ || !lock->waits_) continue;
      for (ForkAware* taken = first_; taken != lock; taken = taken->next_) {
        if (taken->taken_) taken->give_back();
      }
      return false;
    }
    return true;
  }
  void after_fork(bool is_child) {
    for (ForkAware* lock = first_; lock != nullptr; lock = lock->next_) {
      if (lock->taken_) {
        lock->give_back();
      } else if (is_child) {
        lock->make_free();
      }
    }
    if (is_child) forked_child = true;
    mutex_.unlock();
  }

  std::mutex mutex_;
  ForkAware* first_ = nullptr;
};

ForkAware::Known::Known(ForkAware& lock) : lock_(lock) { ForkHandlers::all().add(lock); }

ForkAware::Known::~Known() { ForkHandlers::all().remove(lock_); }

WithoutGil::WithoutGil()
    : python_thread_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}

WithoutGil::~WithoutGil() {
  if (python_thread_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(python_thread_));
}

void GilSafeMutex::lock_contended() {
  {
    const WithoutGil no_gil;
    mutex_.lock();
  }
  owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  depth_ = 1;
}

void GilSafeMutex::make_free() {
  std::construct_at(&mutex_);
  owner_ = std::thread::id();
  depth_ = 0;
}

void ForkSafeReference::make_free() { std::construct_at(&mutex_); }

bool is_forked_child() { return forked_child; }

}  // namespace metalops
