// Reference counts, pools, weak references, properties and locks of objects.
#include <c10/util/Exception.h>
#include <locks.h>
#include <objc/runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <csrc/host/objc/abi.h>
#include <csrc/host/objc/blocks.h>
#include <csrc/host/objc/runtime.h>

METALOPS_OBJC_DECLARE(NSConstantString)

namespace metalops::objc {
namespace {

using Lock = std::lock_guard<ForkSafeMutex>;

// In front of each object.
struct alignas(16) Header {
  std::atomic<int32_t> references;
  std::atomic<uint8_t> has_weak;        // a weak reference to it was made
  std::atomic<uint8_t> has_associated;  // another object was associated with it
  uint16_t shift;                       // from what malloc returned
};

Header& header_of(const void* object) {
  return reinterpret_cast<Header*>(const_cast<void*>(object))[-1];
}

// Returns true for what allocate() made, but for neither memory of the device nor blocks, classes
// and literals.
bool is_counted(id object) {
  if (object == nullptr || is_tagged(object)) return false;
  if ((reinterpret_cast<uintptr_t>(object) & (kMemoryAlignment - 1)) == 0) return false;
  const Class isa = object->isa;
  if (isa == &class_NSConstantString || is_block(object)) return false;
  return (isa->info & kIsMetaclass) == 0;
}

// Weak references by object, and objects that are associated with others.
struct Tables {
  ForkSafeMutex mutex;
  std::unordered_map<id, std::unordered_set<id*>> weak;
  std::unordered_map<id, std::unordered_map<const void*, Strong>> associated;
};
Tables& tables() {
  static Tables& one = *new Tables;
  return one;
}

// The caller holds the lock.
void point_weakly(id* place, id object) {
  *place = object;
  if (!is_counted(object)) return;
  header_of(object).has_weak = 1;
  tables().weak[object].insert(place);
}
void forget_weakly(id* place) {
  const auto found = tables().weak.find(*place);
  if (found == tables().weak.end()) return;
  found->second.erase(place);
  if (found->second.empty()) tables().weak.erase(found);
}

void forget_others(id object) {
  const Header& header = header_of(object);
  std::unordered_map<const void*, Strong> unused;
  if (header.has_weak == 0 && header.has_associated == 0) return;
  Lock lock(tables().mutex);
  const auto weak = tables().weak.find(object);
  if (weak != tables().weak.end()) {
    for (id* place : weak->second) *place = nullptr;
    tables().weak.erase(weak);
  }
  const auto associated = tables().associated.find(object);
  if (associated != tables().associated.end()) {
    unused = std::move(associated->second);
    tables().associated.erase(associated);
  }
}

// The autoreleased objects of a thread. A pool is the number of objects that were there before it.
struct Pools {
  std::vector<id> objects;
  ~Pools() { drain(0); }
  void drain(size_t count) {
    while (objects.size() > count) {
      id last = objects.back();
      objects.pop_back();
      objc_release(last);
    }
  }
};
Pools& pools() {
  thread_local Pools mine;
  return mine;
}

}  // namespace

Strong::Strong(id object) : object_(objc_retain(object)) {}
Strong::~Strong() { objc_release(object_); }

void* allocate_memory(size_t bytes) {
  auto* start = static_cast<char*>(std::calloc(1, bytes + 2 * sizeof(Header)));
  if (start == nullptr) throw std::bad_alloc();
  char* object = start + sizeof(Header);
  if (reinterpret_cast<uintptr_t>(object) % kMemoryAlignment == 0) object += sizeof(Header);
  Header& header = header_of(object);
  header.references = 1;
  header.shift = static_cast<uint16_t>(object - start);
  return object;
}

void free_memory(void* memory) { std::free(static_cast<char*>(memory) - header_of(memory).shift); }

id autoreleased(id object) { return objc_autorelease(object); }

unsigned long references(id object) {
  return is_counted(object) ? static_cast<unsigned long>(header_of(object).references) : ~0ul;
}

}  // namespace metalops::objc

using namespace metalops::objc;

extern "C" {

// ---- counts -------------------------------------------------------------------------------------

id objc_retain(id object) {
  if (is_counted(object)) {
    header_of(object).references.fetch_add(1, std::memory_order_relaxed);
  } else if (is_block(object)) {
    return static_cast<id>(_Block_copy(object));
  }
  return object;
}
void objc_release(id object) {
  if (is_counted(object)) {
    if (header_of(object).references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    static const SEL dealloc = sel_registerName("dealloc");
    forget_others(object);
    reinterpret_cast<void (*)(id, SEL)>(lookup(object, dealloc))(object, dealloc);
  } else if (is_block(object)) {
    _Block_release(object);
  }
}
id objc_autorelease(id object) {
  if (object != nullptr) pools().objects.push_back(object);
  return object;
}
id objc_retainAutorelease(id object) { return objc_autorelease(objc_retain(object)); }
id objc_retainAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_claimAutoreleasedReturnValue(id object) { return objc_retain(object); }
id objc_unsafeClaimAutoreleasedReturnValue(id object) { return object; }
id objc_autoreleaseReturnValue(id object) { return objc_autorelease(object); }
id objc_retainAutoreleaseReturnValue(id object) { return objc_retainAutorelease(object); }
id objc_retainBlock(id block) { return static_cast<id>(_Block_copy(block)); }
void objc_storeStrong(id* place, id object) {
  objc_retain(object);
  id before = *place;
  *place = object;
  objc_release(before);
}
void* objc_autoreleasePoolPush(void) { return reinterpret_cast<void*>(pools().objects.size() + 1); }
void objc_autoreleasePoolPop(void* pool) { pools().drain(reinterpret_cast<size_t>(pool) - 1); }
id objc_alloc(Class cls) { return send(reinterpret_cast<id>(cls), "alloc"); }
id objc_allocWithZone(Class cls) { return objc_alloc(cls); }
id objc_alloc_init(Class cls) { return send(objc_alloc(cls), "init"); }
id objc_opt_new(Class cls) { return send(reinterpret_cast<id>(cls), "new"); }

// ---- weak references ----------------------------------------------------------------------------

id objc_storeWeak(id* place, id object) {
  Lock lock(tables().mutex);
  if (*place != nullptr) forget_weakly(place);
  point_weakly(place, object);
  return object;
}
id objc_initWeak(id* place, id object) {
  *place = nullptr;
  return objc_storeWeak(place, object);
}
void objc_destroyWeak(id* place) { objc_storeWeak(place, nullptr); }
id objc_loadWeakRetained(id* place) {
  Lock lock(tables().mutex);
  id object = *place;
  if (!is_counted(object)) return object;
  // Another thread may just have released the last reference.
  std::atomic<int32_t>& references = header_of(object).references;
  int32_t count = references;
  while (count > 0 && !references.compare_exchange_weak(count, count + 1)) {
  }
  return count > 0 ? object : nullptr;
}
id objc_loadWeak(id* place) { return objc_autorelease(objc_loadWeakRetained(place)); }
void objc_copyWeak(id* to, id* from) {
  id object = objc_loadWeakRetained(from);
  objc_initWeak(to, object);
  objc_release(object);
}
void objc_moveWeak(id* to, id* from) {
  objc_copyWeak(to, from);
  objc_destroyWeak(from);
}

void objc_setAssociatedObject(id object, const void* key, id value, objc_AssociationPolicy policy) {
  if (!is_counted(object)) return;
  Strong kept = policy == OBJC_ASSOCIATION_ASSIGN ? Strong() : Strong(value);
  if (policy == OBJC_ASSOCIATION_COPY || policy == OBJC_ASSOCIATION_COPY_NONATOMIC) {
    kept = Strong::taken(value != nullptr ? send(value, "copy") : nullptr);
  }
  Lock lock(tables().mutex);
  header_of(object).has_associated = 1;
  std::swap(tables().associated[object][key], kept);
}
id objc_getAssociatedObject(id object, const void* key) {
  Lock lock(tables().mutex);
  const auto found = tables().associated.find(object);
  if (found == tables().associated.end()) return nullptr;
  const auto value = found->second.find(key);
  return value != found->second.end() ? value->second.get() : nullptr;
}

// ---- properties ---------------------------------------------------------------------------------

static metalops::ForkSafeMutex& properties() {
  static auto& one = *new metalops::ForkSafeMutex;
  return one;
}
static char* variable(id self, ptrdiff_t offset) { return reinterpret_cast<char*>(self) + offset; }

id objc_getProperty(id self, SEL, ptrdiff_t offset, BOOL is_atomic) {
  id& place = *reinterpret_cast<id*>(variable(self, offset));
  if (!is_atomic) return place;
  id value;
  {
    Lock lock(properties());
    value = objc_retain(place);
  }
  return objc_autorelease(value);
}
void objc_setProperty(id self, SEL, ptrdiff_t offset, id value, BOOL, BOOL copies) {
  id kept = copies && value != nullptr ? send(value, "copy") : objc_retain(value);
  {
    Lock lock(properties());
    std::swap(*reinterpret_cast<id*>(variable(self, offset)), kept);
  }
  objc_release(kept);
}
void objc_setProperty_atomic(id self, SEL selector, id value, ptrdiff_t offset) {
  objc_setProperty(self, selector, offset, value, true, false);
}
void objc_setProperty_nonatomic(id self, SEL selector, id value, ptrdiff_t offset) {
  objc_setProperty(self, selector, offset, value, false, false);
}
void objc_setProperty_atomic_copy(id self, SEL selector, id value, ptrdiff_t offset) {
  objc_setProperty(self, selector, offset, value, true, true);
}
void objc_setProperty_nonatomic_copy(id self, SEL selector, id value, ptrdiff_t offset) {
  objc_setProperty(self, selector, offset, value, false, true);
}
void objc_copyPropertyStruct(void* to, const void* from, ptrdiff_t bytes, BOOL, BOOL) {
  Lock lock(properties());
  std::memmove(to, from, static_cast<size_t>(bytes));
}
void objc_getPropertyStruct(void* to, const void* from, ptrdiff_t bytes, BOOL is_atomic, BOOL) {
  objc_copyPropertyStruct(to, from, bytes, is_atomic, false);
}
void objc_setPropertyStruct(void* to, const void* from, ptrdiff_t bytes, BOOL is_atomic, BOOL) {
  objc_copyPropertyStruct(to, from, bytes, is_atomic, false);
}
void objc_copyCppObjectAtomic(void* to, const void* from, void (*copy)(void*, const void*)) {
  Lock lock(properties());
  copy(to, from);
}

// ---- @synchronized ------------------------------------------------------------------------------

namespace {
// The lock of an object exists as long as threads hold it or wait for it.
struct ObjectLock {
  std::recursive_mutex mutex;
  size_t users = 0;
};
struct ObjectLocks {
  metalops::ForkSafeMutex mutex;
  std::unordered_map<id, ObjectLock> locks;
};
ObjectLocks& object_locks() {
  static ObjectLocks& one = *new ObjectLocks;
  return one;
}
}  // namespace

int objc_sync_enter(id object) {
  if (object == nullptr) return 0;
  ObjectLock* lock;
  {
    Lock guard(object_locks().mutex);
    lock = &object_locks().locks[object];
    ++lock->users;
  }
  lock->mutex.lock();
  return 0;
}
int objc_sync_exit(id object) {
  if (object == nullptr) return 0;
  Lock guard(object_locks().mutex);
  const auto found = object_locks().locks.find(object);
  if (found == object_locks().locks.end()) return -1;
  found->second.mutex.unlock();
  if (--found->second.users == 0) object_locks().locks.erase(found);
  return 0;
}

}  // extern "C"
