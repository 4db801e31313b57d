// Grand Central Dispatch.
#import <Foundation/Foundation.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

TEST(sync_runs_in_order_with_async) {
  dispatch_queue_t queue = dispatch_queue_create("serial", DISPATCH_QUEUE_SERIAL);
  __block std::vector<int> order;
  for (int i = 0; i < 100; ++i)
    dispatch_async(queue, ^{
      order.push_back(i);
    });
  dispatch_sync(queue, ^{
    order.push_back(100);
  });
  EQUAL(order.size(), 101u);
  bool sorted = true;
  for (int i = 0; i <= 100; ++i) sorted = sorted && order[i] == i;
  CHECK(sorted);
  EQUAL(std::string(dispatch_queue_get_label(queue)), "serial");
  dispatch_release(queue);
}

TEST(cpp_exceptions_cross_sync) {
  dispatch_queue_t queue = dispatch_queue_create("throws", nullptr);
  RAISES("in a block", dispatch_sync(queue, ^{
           throw std::runtime_error("in a block");
         }));
  __block bool ran = false;
  dispatch_sync(queue, ^{
    ran = true;
  });
  CHECK(ran);
  dispatch_release(queue);
}

TEST(sync_on_its_own_queue_is_an_error) {
  dispatch_queue_t queue = dispatch_queue_create("own", nullptr);
  RAISES("the queue 'own' already runs the block that calls it; on a Mac this blocks forever",
         dispatch_sync(queue, ^{
           dispatch_sync(queue, ^{
                         });
         }));
  dispatch_release(queue);
}

TEST(once_runs_once_and_again_after_an_exception) {
  static dispatch_once_t predicate;
  static int runs;
  runs = 0;
  RAISES("first", dispatch_once(&predicate, ^{
           ++runs;
           throw std::runtime_error("first");
         }));
  dispatch_once(&predicate, ^{
    ++runs;
  });
  dispatch_once(&predicate, ^{
    ++runs;
  });
  EQUAL(runs, 2);
}

TEST(concurrent_blocks_meet_and_barriers_run_alone) {
  dispatch_queue_t queue = dispatch_queue_create("concurrent", DISPATCH_QUEUE_CONCURRENT);
  dispatch_semaphore_t first = dispatch_semaphore_create(0), second = dispatch_semaphore_create(0);
  static std::atomic<int> met;
  met = 0;
  dispatch_async(queue, ^{
    dispatch_semaphore_signal(first);
    dispatch_semaphore_wait(second, DISPATCH_TIME_FOREVER);
    ++met;
  });
  dispatch_async(queue, ^{
    dispatch_semaphore_wait(first, DISPATCH_TIME_FOREVER);
    dispatch_semaphore_signal(second);
    ++met;
  });
  __block int seen = -1;
  dispatch_barrier_sync(queue, ^{
    seen = met.load();
  });
  EQUAL(seen, 2);
  dispatch_release(first);
  dispatch_release(second);
  dispatch_release(queue);
}

// Runs `body` on several threads at once.
static void on_threads(int count, const std::function<void()>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

TEST(threads_take_turns_on_a_serial_queue) {
  constexpr int kThreads = 4, kTurns = 500;
  dispatch_queue_t queue = dispatch_queue_create("turns", nullptr);
  static int turns;  // no atomic: one block runs at a time
  turns = 0;
  on_threads(kThreads, [&] {
    for (int i = 0; i < kTurns; ++i) {
      const dispatch_block_t turn = ^{
        const int before = turns;
        if (i % 50 == 0) std::this_thread::yield();
        turns = before + 1;
      };
      if (i % 10 == 0) {
        dispatch_async(queue, turn);
      } else {
        dispatch_sync(queue, turn);
      }
    }
  });
  dispatch_sync(queue, ^{
                });
  EQUAL(turns, kThreads * kTurns);
  dispatch_release(queue);
}

TEST(barriers_of_many_threads_run_alone) {
  dispatch_queue_t queue = dispatch_queue_create("barriers", DISPATCH_QUEUE_CONCURRENT);
  static std::atomic<int> inside, wrong;
  static int barriers;
  inside = wrong = barriers = 0;
  on_threads(4, [&] {
    for (int i = 0; i < 300; ++i) {
      dispatch_sync(queue, ^{
        ++inside;
        if (i % 50 == 0) std::this_thread::yield();
        --inside;
      });
      if (i % 3 != 0) continue;
      dispatch_barrier_sync(queue, ^{
        wrong += inside != 0;
        ++barriers;
      });
    }
  });
  EQUAL(wrong.load(), 0);
  EQUAL(barriers, 400);
  dispatch_release(queue);
}

TEST(groups_wait_and_notify) {
  dispatch_queue_t queue = dispatch_queue_create("group", nullptr);
  dispatch_group_t group = dispatch_group_create();
  static std::atomic<int> sum;
  sum = 0;
  for (int i = 1; i <= 10; ++i)
    dispatch_group_async(group, queue, ^{
      sum += i;
    });
  EQUAL(dispatch_group_wait(group, DISPATCH_TIME_FOREVER), 0);
  EQUAL(sum.load(), 55);
  dispatch_semaphore_t notified = dispatch_semaphore_create(0);
  dispatch_group_notify(group, queue, ^{
    dispatch_semaphore_signal(notified);
  });
  EQUAL(dispatch_semaphore_wait(notified, dispatch_time(DISPATCH_TIME_NOW, 10 * NSEC_PER_SEC)), 0);
  dispatch_release(notified);
  dispatch_release(group);
  dispatch_release(queue);
}

TEST(semaphores_time_out) {
  dispatch_semaphore_t semaphore = dispatch_semaphore_create(1);
  EQUAL(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_NOW), 0);
  CHECK(dispatch_semaphore_wait(semaphore, DISPATCH_TIME_NOW) != 0);
  CHECK(dispatch_semaphore_wait(semaphore, dispatch_time(DISPATCH_TIME_NOW, 1000)) != 0);
  dispatch_release(semaphore);
}

TEST(apply_runs_every_iteration) {
  __block std::vector<int> counts(50);
  dispatch_apply(50, dispatch_get_global_queue(QOS_CLASS_DEFAULT, 0), ^(size_t i) {
    ++counts[i];
  });
  for (int count : counts) EQUAL(count, 1);
}

TEST(data_is_copied_and_its_destructor_called) {
  __block int destroyed = 0;
  char bytes[] = "data";
  dispatch_data_t data = dispatch_data_create(bytes, 4, nullptr, ^{
    ++destroyed;
  });
  bytes[0] = '-';
  const void* mapped;
  size_t size;
  dispatch_data_t map = dispatch_data_create_map(data, &mapped, &size);
  EQUAL(std::string(static_cast<const char*>(mapped), size), "data");
  dispatch_release(map);
  dispatch_release(data);
  EQUAL(destroyed, 1);
}

TEST(after_runs_later) {
  dispatch_semaphore_t ran = dispatch_semaphore_create(0);
  dispatch_after(dispatch_time(DISPATCH_TIME_NOW, NSEC_PER_MSEC), dispatch_get_global_queue(0, 0),
                 ^{
                   dispatch_semaphore_signal(ran);
                 });
  EQUAL(dispatch_semaphore_wait(ran, dispatch_time(DISPATCH_TIME_NOW, 10 * NSEC_PER_SEC)), 0);
  dispatch_release(ran);
}
