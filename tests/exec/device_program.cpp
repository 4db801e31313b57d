// The software device without torch and Python: the engines, libraries, locks, streams, events and
// large blocks of csrc/host, with CPU threads of its own, since torch's synchronise in ways that
// ThreadSanitizer does not see. It does at once what the threads of a program may do. Built and run
// by test_device_program.py, under ThreadSanitizer and under an emulator of another CPU. Arguments:
// the kernel library, how often everything is done, and what else: "race" to have one that is to be
// found, "numbers" to print those of a kernel, or "nothing".
#include <Python.h>
#include <c10/util/Exception.h>
#include <device/events.h>
#include <device/large_blocks.h>
#include <exec/cpu_threads.h>
#include <exec/exec.h>
#include <exec/sanitize/findings.h>
#include <locks.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// There is no Python in this program.
extern "C" {
int Py_IsInitialized() { return 0; }
int PyGILState_Check() { return 0; }
PyThreadState* PyEval_SaveThread() { std::abort(); }
void PyEval_RestoreThread(PyThreadState*) { std::abort(); }
}

namespace metalops {

void raise_reported_errors() {}

namespace device {

void before_host_read() {}
void synchronize() {}

}  // namespace device
}  // namespace metalops

namespace metalops::exec {
namespace {

constexpr int kCpuThreads = 4;
thread_local bool works_for_others = false;

// Threads that wait for work of the thread that made them, as OpenMP's do.
class Team {
 public:
  Team() {
    for (int i = 1; i < kCpuThreads; ++i) threads_.emplace_back([this, i] { serve(i); });
  }
  ~Team() {
    give(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  // work(i) on thread i.
  void run(const std::function<void(int)>& work) {
    give(&work);
    work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_ == kCpuThreads - 1; });
  }

 private:
  void give(const std::function<void(int)>* work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = work;
    done_ = 0;
    ++round_;
    changed_.notify_all();
  }
  void serve(int index) {
    works_for_others = true;
    for (int round = 1;; ++round) {
      const std::function<void(int)>* work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return round_ == round; });
        work = work_;
      }
      if (work == nullptr) return;
      (*work)(index);
      std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* work_ = nullptr;
  int round_ = 0;
  int done_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

int threads_to_use(int threads) { return threads > 0 ? threads : kCpuThreads; }

bool is_one_of_several() { return works_for_others; }

void on_cpu_threads(int64_t shares, c10::function_ref<void(int64_t, int64_t)> do_shares) {
  if (works_for_others) return do_shares(0, shares);
  static thread_local Team team;
  std::exception_ptr error;
  std::mutex mutex;
  works_for_others = true;
  team.run([&](int index) {
    const int64_t each = (shares + kCpuThreads - 1) / kCpuThreads;
    const int64_t first = index * each, last = std::min(first + each, shares);
    if (first >= last) return;
    try {
      do_shares(first, last);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      error = std::current_exception();
    }
  });
  works_for_others = false;
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace metalops::exec

namespace {

using namespace metalops;
using exec::Engine;
using exec::Library;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(2);
}

// The error that the launch raises, or nothing.
std::string launch(const Library& library, const char* name, Engine engine,
                   std::vector<int32_t>& out, uint32_t group) {
  exec::Launch launch = {};
  launch.buffers[0] = out.data();
  launch.buffer_bytes[0] = out.size() * sizeof(int32_t);
  launch.grid[0] = uint32_t(out.size());
  launch.group[0] = group;
  launch.grid[1] = launch.grid[2] = launch.group[1] = launch.group[2] = 1;
  const exec::Kernel* const kernel = library.find(name);
  expect(kernel != nullptr, name);
  try {
    exec::run(*kernel, launch, engine);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void expect_launch(const Library& library, const char* name, Engine engine, int threads,
                   uint32_t group, int32_t each) {
  std::vector<int32_t> out(threads, 0);
  const std::string error = launch(library, name, engine, out, group);
  expect(error.empty(), error.c_str());
  expect(exec::threads_of_last_launch() == (exec::is_one_of_several() ? 1 : exec::kCpuThreads),
         "a launch took another number of CPU threads");
  for (int32_t value : out) expect(value == each, name);
}

void launch_loops(const Library& library) {
  expect_launch(library, "plain", Engine::kLoop, 100'000, 64, 7);
}

void launch_groups(const Library& library) {
  // Small groups: a stack takes almost a megabyte of ThreadSanitizer's memory.
  expect_launch(library, "plain", Engine::kFiber, 33 * 20, 33, 7);
  expect_launch(library, "synchronising", Engine::kFiber, 33 * 20, 33, 33);
  expect_launch(library, "synchronising", Engine::kAutomatic, 33 * 20, 33, 33);
}

void launch_wrong_kernel(const Library& library) {
  std::vector<int32_t> out(33 * 20, 0);
  const std::string error = launch(library, "different_barriers", Engine::kFiber, out, 33);
  expect(error.find("deadlock in kernel 'different_barriers'") != std::string::npos, error.c_str());
  launch_groups(library);
}

void load_libraries(const std::string& path, const std::string& bytes) {
  const auto opened = Library::open(path);
  const auto copied = Library::from_bytes(bytes.data(), bytes.size());
  const int32_t value = 5;
  const auto special =
      opened->specialise({{0, std::string(reinterpret_cast<const char*>(&value), 4)}});
  launch_loops(*opened);
  launch_groups(*copied);
  expect_launch(*special, "constant_value", Engine::kAutomatic, 100'000, 64, 5);
}

void use_events() {
  namespace pool = device::event_pool;
  const uint32_t first = pool::acquire(true), second = pool::acquire(true);
  pool::record(first);
  pool::record(second);
  pool::wait(first);
  expect(pool::query(first) && pool::elapsed(first, second) >= 0, "events");
  pool::release(first);
  pool::release(second);
}

void use_large_blocks() {
  constexpr size_t most = 4 * device::kLargeFrom;
  void* const memory = device::allocate_large(device::kLargeFrom + 5);
  static_cast<volatile char*>(memory)[0] = 1;
  expect(device::large_bytes(memory) == device::kLargeFrom + 5, "large blocks");
  device::free_large(memory, most);
  device::release_kept(most / 2);
  expect(device::large_bytes_beyond_use() < 100 * most, "large blocks");
}

// What the CPU threads of a launch must not do.
int64_t shares_done = 0;
void race() {
  std::atomic<int> begun{0};
  exec::on_cpu_threads(exec::kCpuThreads, [&](int64_t first, int64_t last) {
    begun.fetch_add(1, std::memory_order_relaxed);
    while (begun.load(std::memory_order_relaxed) != exec::kCpuThreads) std::this_thread::yield();
    shares_done += last - first;
  });
}

// As Python's signal handlers do.
const Library* interrupting = nullptr;
int interrupts = 0;
void launch_within() {
  ++interrupts;
  launch_loops(*interrupting);
  launch_groups(*interrupting);
}

void print_numbers(const Library& library) {
  std::vector<int32_t> out(256, 0);
  const std::string error = launch(library, "numbers", Engine::kAutomatic, out, 32);
  expect(error.empty(), error.c_str());
  for (int32_t number : out) std::printf("%d\n", number);
}

}  // namespace

int main(int, char** arguments) {
  const std::string path = arguments[1];
  const int times = std::atoi(arguments[2]);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto library = Library::open(path);
  interrupting = library.get();
  exec::check_interrupt = &launch_within;

  std::vector<std::function<void()>> everything = {
      [&] { launch_loops(*library); },
      [&] { launch_groups(*library); },
      [&] { launch_groups(*library); },
      [&] { launch_wrong_kernel(*library); },
      [&] { load_libraries(path, bytes); },
      use_events,
      use_events,
      use_large_blocks,
      use_large_blocks,
  };
  const std::string also = arguments[3];
  if (also == "race") everything.push_back(race);
  std::vector<std::thread> threads;
  for (const auto& work : everything) {
    threads.emplace_back([&] {
      for (int i = 0; i < times; ++i) work();
    });
  }
  while (interrupts < 2) expect_launch(*library, "slow", Engine::kLoop, 4'000, 64, 3);
  for (std::thread& thread : threads) thread.join();
  if (also == "numbers") print_numbers(*library);
  std::printf("fine\n");
}
