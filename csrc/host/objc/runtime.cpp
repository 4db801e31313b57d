// Classes, selectors, the lookup of methods, and what is loaded with a program.
#include <objc/runtime.h>

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <link.h>
#include <locks.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <csrc/host/objc/abi.h>
#include <csrc/host/objc/runtime.h>

extern "C" {
// Their addresses are the classes of blocks. They are all zeros: a message to a block takes the
// slow path.
__attribute__((visibility("default"))) void* _NSConcreteGlobalBlock[32];
__attribute__((visibility("default"))) void* _NSConcreteStackBlock[32];
__attribute__((visibility("default"))) void* _NSConcreteMallocBlock[32];
}

METALOPS_OBJC_DECLARE(NSObject)
METALOPS_OBJC_DECLARE(NSBlock)
METALOPS_OBJC_DECLARE(NSTinyString)
METALOPS_OBJC_CLASS(Protocol)

namespace metalops::objc {

Class memory_class = nullptr;

namespace {

// The addresses of a loaded program or library, whose data may be an object.
struct AddressRange {
  uintptr_t begin, end;
};

// All that was loaded and registered. Never destroyed: programs send messages until the process
// ends.
struct Registry {
  ForkSafeMutex mutex;
  std::unordered_map<std::string_view, uintptr_t> indices;  // of the names of selectors
  std::vector<const char*> names{"<none>"};
  std::unordered_map<uintptr_t, SEL> selectors;
  std::deque<objc_selector> own_selectors;
  std::unordered_map<std::string_view, Class> classes;
  std::unordered_set<const void*> class_objects;  // and metaclasses
  std::unordered_map<std::string_view, ProtocolObject*> protocols;
  std::deque<Definition> definitions;
  std::atomic<const std::vector<AddressRange>*> images{
      new std::vector<AddressRange>};  // replaced as a whole
};

Registry& registry() {
  static Registry& one = *new Registry;
  return one;
}
using Lock = std::lock_guard<ForkSafeMutex>;

// The caller holds the lock.
uintptr_t index_of(const char* name) {
  Registry& all = registry();
  const auto found = all.indices.find(name);
  if (found != all.indices.end()) return found->second;
  const char* copy = strdup(name);  // a program may be unloaded
  all.names.push_back(copy);
  return all.indices[copy] = all.names.size() - 1;
}

SEL selector_of(const char* name) {
  Registry& all = registry();
  const uintptr_t index = index_of(name);
  SEL& known = all.selectors[index];
  if (known == nullptr) {
    known = &all.own_selectors.emplace_back();
    known->index = index;
  }
  return known;
}

// Registers the addresses of the program or library that has this address.
void add_image(const void* inside) {
  struct Search {
    uintptr_t address;
    AddressRange found;
  } search{reinterpret_cast<uintptr_t>(inside), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* search = static_cast<Search*>(data);
        AddressRange range{UINTPTR_MAX, 0};
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          range.begin = std::min<uintptr_t>(range.begin, info->dlpi_addr + segment.p_vaddr);
          range.end =
              std::max<uintptr_t>(range.end, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        if (search->address < range.begin || search->address >= range.end) return 0;
        search->found = range;
        return 1;
      },
      &search);
  Registry& all = registry();
  Lock lock(all.mutex);
  auto* images = new std::vector<AddressRange>(*all.images.load());
  images->push_back(search.found);
  std::sort(images->begin(), images->end(),
            [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
  all.images.store(images, std::memory_order_release);  // others may still read the previous one
}

bool is_in_image(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  const auto& images = *registry().images.load(std::memory_order_acquire);
  const auto after =
      std::upper_bound(images.begin(), images.end(), number,
                       [](uintptr_t n, const AddressRange& r) { return n < r.begin; });
  return after != images.begin() && number < std::prev(after)->end;
}

bool is_on_this_stack(const void* address) {
  thread_local const AddressRange stack = [] {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &begin, &bytes);
      pthread_attr_destroy(&attributes);
    }
    const auto first = reinterpret_cast<uintptr_t>(begin);
    return AddressRange{first, first + bytes};
  }();
  const auto number = reinterpret_cast<uintptr_t>(address);
  return stack.begin <= number && number < stack.end;
}

// Returns true for a block that was not copied, at an address that memory of the device could have.
// The first word alone does not tell: it may be the contents of a tensor.
bool is_block_in_place(const void* address) {
  const void* isa = *static_cast<void* const*>(address);
  if (isa == _NSConcreteStackBlock) return is_on_this_stack(address);
  Dl_info info;
  return isa == _NSConcreteGlobalBlock && dladdr(address, &info) != 0;
}

// Finds the function of a method in the lists of a class, and of its superclasses.
IMP find(Class cls, uintptr_t index) {
  for (; cls != nullptr; cls = cls->super_class) {
    for (const MethodList* list = cls->methods; list != nullptr; list = list->next) {
      for (int i = 0; i < list->count; ++i) {
        if (list->entries[i].selector->index == index) return list->entries[i].imp;
      }
    }
  }
  return nullptr;
}

IMP find_own(Class cls, uintptr_t index) {
  for (const MethodList* list = cls->methods; list != nullptr; list = list->next) {
    for (int i = 0; i < list->count; ++i) {
      if (list->entries[i].selector->index == index) return list->entries[i].imp;
    }
  }
  return nullptr;
}

// The caller holds the lock.
void remember(Class cls, uintptr_t index, IMP function) {
  DispatchTable* table = cls->table;
  if (table == nullptr || table->count <= index) {
    const size_t count = (registry().names.size() + 255) / 256 * 256;
    auto* larger = static_cast<DispatchTable*>(
        std::calloc(1, sizeof(DispatchTable) + count * sizeof(std::atomic<IMP>)));
    if (larger == nullptr) throw std::bad_alloc();
    larger->count = count;
    for (size_t i = 0; table != nullptr && i < table->count; ++i) {
      larger->functions[i].store(table->functions[i]);
    }
    // The previous table is not freed: another thread may read it.
    __atomic_store_n(&cls->table, larger, __ATOMIC_RELEASE);
    table = larger;
  }
  table->functions[index].store(function);
}

// Held while +initialize runs: threads that send a message to the class meanwhile wait, the thread
// itself does not.
GilSafeMutex& initializing() {
  static GilSafeMutex& one = *new GilSafeMutex;
  return one;
}

// Calls +initialize of a class that has not been used yet, and of its superclasses before.
void initialize_class(Class cls) {
  if ((__atomic_load_n(&cls->info, __ATOMIC_ACQUIRE) & kIsInitialized) != 0) return;
  std::lock_guard<GilSafeMutex> lock(initializing());
  if ((cls->info & kIsInitialized) != 0) return;
  if (cls->super_class != nullptr) initialize_class(cls->super_class);
  __atomic_or_fetch(&cls->info, kIsInitialized, __ATOMIC_RELEASE);
  const SEL selector = sel_registerName("initialize");
  if (IMP function = find(cls->isa, selector->index)) {
    function(reinterpret_cast<id>(cls), selector);
  }
}

IMP find_and_remember(Class cls, uintptr_t index) {
  if ((cls->info & kIsMetaclass) == 0) {
    initialize_class(cls);
  } else if (Class instances = objc_lookUpClass(cls->name)) {
    initialize_class(instances);
  }
  Lock lock(registry().mutex);
  const IMP found = find(cls, index);
  if (found != nullptr) remember(cls, index, found);
  return found;
}

void add_class(Class cls) {
  Registry& all = registry();
  all.classes[cls->name] = cls;
  all.class_objects.insert(cls);
  all.class_objects.insert(cls->isa);
}

// Places the variables of a program's class behind those of its superclass. The caller holds the
// lock.
void resolve(Class cls) {
  if ((cls->info & kIsResolved) != 0) return;
  cls->info |= kIsResolved;
  const Class super = cls->super_class;
  if (super != nullptr) resolve(super);
  const long begin = super != nullptr ? (super->instance_size + 15) / 16 * 16 : 0;
  cls->instance_size = begin - cls->instance_size;
  for (int i = 0; cls->ivars != nullptr && i < cls->ivars->count; ++i) {
    *cls->ivars->entries[i].offset += static_cast<int>(begin);
  }
  cls->cxx_construct = find_own(cls, index_of(".cxx_construct"));
  cls->cxx_destruct = find_own(cls, index_of(".cxx_destruct"));
  cls->isa->isa = class_NSObject.isa;
  cls->isa->super_class = super != nullptr ? super->isa : cls;
  cls->isa->instance_size = sizeof(objc_class);
  add_class(cls);
}

bool conforms(const Protocols* list, std::string_view name) {
  for (; list != nullptr; list = list->next) {
    for (size_t i = 0; i < list->count; ++i) {
      const ProtocolObject* protocol = list->entries[i];
      if (protocol->name == name || conforms(protocol->protocols, name)) return true;
    }
  }
  return false;
}

MethodList* list_of(Methods methods) {
  auto* list = static_cast<MethodList*>(
      std::calloc(1, sizeof(MethodList) + methods.size() * sizeof(MethodEntry)));
  if (list == nullptr) throw std::bad_alloc();
  list->entry_size = sizeof(MethodEntry);
  for (const Method& method : methods) {
    list->entries[list->count++] = {reinterpret_cast<IMP>(method.function),
                                    selector_of(method.name), "?"};
  }
  return list;
}

void add_methods(Class cls, MethodList* list) {
  if (list == nullptr) return;
  MethodList* last = list;
  while (last->next != nullptr) last = last->next;
  last->next = cls->methods;
  cls->methods = list;
}

// Tables of subclasses may have the methods that another one replaces. They are not freed: another
// thread may read them. The caller holds the lock.
void forget_functions() {
  for (const void* object : registry().class_objects) {
    auto* other = const_cast<Class>(static_cast<const objc_class*>(object));
    __atomic_store_n(&other->table, nullptr, __ATOMIC_RELEASE);
  }
}

void add_category(Category& category) {
  Registry& all = registry();
  const auto found = all.classes.find(category.class_name);
  TORCH_CHECK(found != all.classes.end(), "The class ", category.class_name, " of the category ",
              category.name, " does not exist on the software Metal device");
  const Class cls = found->second;
  add_methods(cls, category.methods);
  add_methods(cls->isa, category.class_methods);
  if (category.protocols != nullptr) {
    Protocols* last = category.protocols;
    while (last->next != nullptr) last = last->next;
    last->next = cls->protocols;
    cls->protocols = category.protocols;
  }
  forget_functions();
}

// The one initialiser of the library: it runs before those of the programs that need it.
__attribute__((constructor)) void initialize() {
  add_image(&class_NSObject);
  define_foundation();
  define<objc_object>(METALOPS_OBJC_SYMBOLS(Protocol), &class_NSObject, {});
  define_metal();
  connect_torch();
}

}  // namespace

void define(Definition definition, Methods methods, Methods class_methods) {
  Registry& all = registry();
  Lock lock(all.mutex);
  const auto [cls, meta, name] = definition.symbols;
  const Class super = definition.super;
  cls->isa = meta;
  cls->super_class = super;
  cls->name = meta->name = name;
  cls->info = kIsResolved;
  cls->instance_size = static_cast<long>(definition.size);
  meta->info = kIsMetaclass | kIsResolved;
  meta->isa = super == nullptr ? meta : class_NSObject.isa;
  meta->super_class = super == nullptr ? cls : super->isa;
  meta->instance_size = sizeof(objc_class);
  cls->methods = list_of(methods);
  meta->methods = list_of(class_methods);
  add_class(cls);
  cls->definition = &all.definitions.emplace_back(std::move(definition));
}

// ---- objects ------------------------------------------------------------------------------------

namespace {

// The definition of a class, or of its nearest superclass that has one.
const Definition* definition_of(Class cls) {
  while (cls != nullptr && cls->definition == nullptr) cls = cls->super_class;
  return cls != nullptr ? cls->definition : nullptr;
}

// C++ variables of a program's classes are constructed from the root on, and destroyed in the
// opposite order.
void construct_variables(id object, Class cls) {
  static const SEL selector = sel_registerName(".cxx_construct");
  if (cls->super_class != nullptr) construct_variables(object, cls->super_class);
  if (cls->cxx_construct != nullptr) cls->cxx_construct(object, selector);
}

void destroy_variables(id object) {
  static const SEL selector = sel_registerName(".cxx_destruct");
  for (Class cls = object->isa; cls != nullptr; cls = cls->super_class) {
    if (cls->cxx_destruct != nullptr) cls->cxx_destruct(object, selector);
  }
}

}  // namespace

id allocate(Class cls) {
  initialize_class(cls);
  auto* object = static_cast<id>(allocate_memory(static_cast<size_t>(cls->instance_size)));
  object->isa = cls;
  if (const Definition* definition = definition_of(cls)) definition->construct(object);
  construct_variables(object, cls);
  return object;
}

void destroy(id object) {
  destroy_variables(object);
  if (const Definition* definition = definition_of(object->isa)) definition->destroy(object);
  object->isa = nullptr;
  free_memory(object);
}

bool is_memory(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  return address != nullptr && (number & (kMemoryAlignment - 1)) == 0 && !is_in_image(address) &&
         !is_block_in_place(address);
}

bool is_block(const void* object) {
  if (object == nullptr || is_tagged(object) || is_memory(object)) return false;
  const void* isa = *static_cast<void* const*>(object);
  return isa == _NSConcreteGlobalBlock || isa == _NSConcreteStackBlock ||
         isa == _NSConcreteMallocBlock;
}

Class class_of(id object) {
  if (object == nullptr) return nullptr;
  if (is_tagged(object)) return &class_NSTinyString;
  if (is_memory(object)) return memory_class;
  return is_block(object) ? &class_NSBlock : object->isa;
}

bool is_class(id object) {
  return object != nullptr && !is_tagged(object) && (class_of(object)->info & kIsMetaclass) != 0;
}

bool is_kind_of(id object, Class wanted) {
  Class cls = class_of(object);
  while (cls != nullptr && cls != wanted) cls = cls->super_class;
  return cls != nullptr;
}

bool conforms_to(Class cls, const char* protocol) {
  Registry& all = registry();
  Lock lock(all.mutex);
  for (; cls != nullptr; cls = cls->super_class) {
    if (conforms(cls->protocols, protocol)) return true;
    if (cls->definition == nullptr) continue;
    for (const char* name : cls->definition->protocols) {
      if (std::string_view(name) == protocol) return true;
    }
  }
  return false;
}

std::string written(id receiver, SEL selector) {
  const bool to_class = is_class(receiver);
  const Class cls = to_class ? as_class(receiver) : class_of(receiver);
  std::string name = class_getName(cls);
  // Programs know Metal's objects by their protocols.
  if (cls != nullptr && cls->definition != nullptr && !cls->definition->protocols.empty()) {
    const std::string protocol = cls->definition->protocols.front();
    if (protocol.starts_with("MTL")) name = protocol;
  }
  return (to_class ? "+[" : "-[") + name + " " + sel_getName(selector) + "]";
}

// ---- messages -----------------------------------------------------------------------------------

IMP lookup(id receiver, SEL selector) {
  const Class cls = class_of(receiver);
  if (cls == nullptr) {
    return reinterpret_cast<IMP>(+[](id, SEL) -> id { return nullptr; });
  }
  if (const DispatchTable* table = __atomic_load_n(&cls->table, __ATOMIC_ACQUIRE)) {
    if (selector->index < table->count) {
      if (IMP known = table->functions[selector->index].load()) return known;
    }
  }
  if (IMP found = find_and_remember(cls, selector->index)) return found;
  unrecognised(receiver, selector);
}

bool responds_to(Class cls, SEL selector) {
  return cls != nullptr && find_and_remember(cls, selector->index) != nullptr;
}

}  // namespace metalops::objc

// ---- what clang and programs call ---------------------------------------------------------------

using namespace metalops::objc;

extern "C" {

IMP metalops_objc_lookup(id receiver, SEL selector) { return lookup(receiver, selector); }

SEL sel_registerName(const char* name) {
  Lock lock(registry().mutex);
  return selector_of(name);
}
SEL sel_getUid(const char* name) { return sel_registerName(name); }
BOOL sel_isEqual(SEL a, SEL b) { return a == b || (a && b && a->index == b->index); }
const char* sel_getName(SEL selector) {
  if (selector == nullptr) return "<null selector>";
  Registry& all = registry();
  Lock lock(all.mutex);
  return selector->index < all.names.size() ? all.names[selector->index] : "<unknown selector>";
}

Class objc_lookUpClass(const char* name) {
  Registry& all = registry();
  Lock lock(all.mutex);
  const auto found = all.classes.find(name);
  return found != all.classes.end() ? found->second : nullptr;
}
id objc_getClass(const char* name) { return reinterpret_cast<id>(objc_lookUpClass(name)); }
id objc_lookup_class(const char* name) { return objc_getClass(name); }
Protocol* objc_getProtocol(const char* name) {
  Registry& all = registry();
  Lock lock(all.mutex);
  const auto found = all.protocols.find(name);
  return found != all.protocols.end() ? reinterpret_cast<Protocol*>(found->second) : nullptr;
}
const char* protocol_getName(Protocol* protocol) {
  return reinterpret_cast<ProtocolObject*>(protocol)->name;
}

Class object_getClass(id object) { return class_of(object); }
const char* object_getClassName(id object) { return class_getName(class_of(object)); }
const char* class_getName(Class cls) { return cls != nullptr ? cls->name : "nil"; }
Class class_getSuperclass(Class cls) { return cls != nullptr ? cls->super_class : nullptr; }
BOOL class_isMetaClass(Class cls) { return cls != nullptr && (cls->info & kIsMetaclass) != 0; }
size_t class_getInstanceSize(Class cls) {
  return cls != nullptr ? static_cast<size_t>(cls->instance_size) : 0;
}
IMP class_getMethodImplementation(Class cls, SEL selector) {
  return cls != nullptr ? find_and_remember(cls, selector->index) : nullptr;
}
IMP class_replaceMethod(Class cls, SEL selector, IMP function, const char* types) {
  Lock lock(registry().mutex);
  const IMP before = find_own(cls, selector->index);
  auto* list = static_cast<MethodList*>(std::calloc(1, sizeof(MethodList) + sizeof(MethodEntry)));
  if (list == nullptr) throw std::bad_alloc();
  list->count = 1;
  list->entry_size = sizeof(MethodEntry);
  list->entries[0] = {function, selector, types};
  add_methods(cls, list);
  forget_functions();
  return before;
}
BOOL class_respondsToSelector(Class cls, SEL selector) { return responds_to(cls, selector); }
BOOL class_conformsToProtocol(Class cls, Protocol* protocol) {
  return cls != nullptr && protocol != nullptr && conforms_to(cls, protocol_getName(protocol));
}

struct objc_super {
  id receiver;
  Class super_class;
};
IMP objc_msg_lookup_super(objc_super* super, SEL selector) {
  if (IMP found = find_and_remember(super->super_class, selector->index)) return found;
  unrecognised(super->receiver, selector);
}

void __objc_load(Image* image) {
  add_image(image);
  Registry& all = registry();
  std::vector<Class> loaded;
  {
    Lock lock(all.mutex);
    for (auto* selector = image->selectors; selector < image->selectors_end; ++selector) {
      if (selector->name != nullptr) selector->index = index_of(selector->name);
    }
    for (Class* cls = image->classes; cls < image->classes_end; ++cls) {
      if (*cls == nullptr) continue;
      resolve(*cls);
      loaded.push_back(*cls);
    }
    for (auto* protocol = image->protocols; protocol < image->protocols_end; ++protocol) {
      if (protocol->name == nullptr) continue;
      protocol->isa = &class_Protocol;
      all.protocols.emplace(protocol->name, protocol);
    }
    for (auto* category = image->categories; category < image->categories_end; ++category) {
      if (category->class_name != nullptr) add_category(*category);
    }
  }
  const SEL load = sel_registerName("load");
  for (Class cls : loaded) {
    if (IMP function = find_own(cls->isa, load->index)) {
      function(reinterpret_cast<id>(cls), load);
    }
  }
}

}  // extern "C"
