// Grand Central Dispatch, as far as host code of Metal programs uses it.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct dispatch_queue_s* dispatch_queue_t;
typedef struct dispatch_queue_s* dispatch_queue_global_t;
typedef struct dispatch_queue_s* dispatch_queue_main_t;
typedef struct dispatch_queue_s* dispatch_queue_serial_t;
typedef struct dispatch_queue_s* dispatch_queue_concurrent_t;
typedef struct dispatch_queue_attr_s* dispatch_queue_attr_t;
typedef struct dispatch_data_s* dispatch_data_t;
typedef struct dispatch_group_s* dispatch_group_t;
typedef struct dispatch_semaphore_s* dispatch_semaphore_t;
typedef void* dispatch_object_t;  // any of these
typedef intptr_t dispatch_once_t;
typedef uint64_t dispatch_time_t;
typedef unsigned int dispatch_qos_class_t;
typedef void (*dispatch_function_t)(void*);
#ifdef __BLOCKS__
typedef void (^dispatch_block_t)(void);
typedef void (^metalops_dispatch_apply_block_t)(size_t);
#else
typedef void* dispatch_block_t;
typedef void* metalops_dispatch_apply_block_t;
#endif

#define DISPATCH_QUEUE_SERIAL ((dispatch_queue_attr_t)0)
#define DISPATCH_QUEUE_CONCURRENT ((dispatch_queue_attr_t)1)
#define DISPATCH_QUEUE_PRIORITY_HIGH 2
#define DISPATCH_QUEUE_PRIORITY_DEFAULT 0
#define DISPATCH_QUEUE_PRIORITY_LOW (-2)
#define DISPATCH_QUEUE_PRIORITY_BACKGROUND INT16_MIN
#define DISPATCH_APPLY_AUTO ((dispatch_queue_t)0)
#define DISPATCH_TARGET_QUEUE_DEFAULT ((dispatch_queue_t)0)
#define QOS_CLASS_USER_INTERACTIVE 0x21
#define QOS_CLASS_USER_INITIATED 0x19
#define QOS_CLASS_DEFAULT 0x15
#define QOS_CLASS_UTILITY 0x11
#define QOS_CLASS_BACKGROUND 0x09
#define QOS_CLASS_UNSPECIFIED 0x00
#define DISPATCH_TIME_NOW ((dispatch_time_t)0)
#define DISPATCH_TIME_FOREVER (~(dispatch_time_t)0)
#ifndef NSEC_PER_SEC
#define NSEC_PER_SEC 1000000000ull
#define NSEC_PER_MSEC 1000000ull
#define USEC_PER_SEC 1000000ull
#define NSEC_PER_USEC 1000ull
#endif
#define DISPATCH_DATA_DESTRUCTOR_DEFAULT ((dispatch_block_t)0)
#define DISPATCH_DATA_DESTRUCTOR_FREE ((dispatch_block_t)1)
#define dispatch_data_empty ((dispatch_data_t)0)

#ifdef __cplusplus
extern "C" {
#endif
void dispatch_retain(dispatch_object_t object);
void dispatch_release(dispatch_object_t object);

dispatch_queue_t dispatch_queue_create(const char* label, dispatch_queue_attr_t attribute);
dispatch_queue_attr_t dispatch_queue_attr_make_with_qos_class(dispatch_queue_attr_t attribute,
                                                              dispatch_qos_class_t qos,
                                                              int relative_priority);
dispatch_queue_t dispatch_get_main_queue(void);
dispatch_queue_t dispatch_get_global_queue(intptr_t identifier, uintptr_t flags);
const char* dispatch_queue_get_label(dispatch_queue_t queue);

// Blocks until the block has run. Raises RuntimeError on the queue that the caller runs on, where
// a Mac would wait for ever.
void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_sync_f(dispatch_queue_t queue, void* context, dispatch_function_t work);
void dispatch_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_async_f(dispatch_queue_t queue, void* context, dispatch_function_t work);
void dispatch_barrier_sync(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_barrier_async(dispatch_queue_t queue, dispatch_block_t block);
void dispatch_after(dispatch_time_t when, dispatch_queue_t queue, dispatch_block_t block);
void dispatch_apply(size_t count, dispatch_queue_t queue, metalops_dispatch_apply_block_t block);
void dispatch_once(dispatch_once_t* predicate, dispatch_block_t block);
void dispatch_once_f(dispatch_once_t* predicate, void* context, dispatch_function_t work);

dispatch_time_t dispatch_time(dispatch_time_t when, int64_t nanoseconds);
dispatch_time_t dispatch_walltime(const struct timespec* when, int64_t nanoseconds);

dispatch_data_t dispatch_data_create(const void* buffer, size_t size, dispatch_queue_t queue,
                                     dispatch_block_t destructor);
size_t dispatch_data_get_size(dispatch_data_t data);
// Returns data that the caller releases, whose memory is at *buffer.
dispatch_data_t dispatch_data_create_map(dispatch_data_t data, const void** buffer, size_t* size);

dispatch_semaphore_t dispatch_semaphore_create(intptr_t value);
intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);
intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);

dispatch_group_t dispatch_group_create(void);
void dispatch_group_enter(dispatch_group_t group);
void dispatch_group_leave(dispatch_group_t group);
intptr_t dispatch_group_wait(dispatch_group_t group, dispatch_time_t timeout);
void dispatch_group_async(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block);
void dispatch_group_notify(dispatch_group_t group, dispatch_queue_t queue, dispatch_block_t block);
#ifdef __cplusplus
}
#endif
