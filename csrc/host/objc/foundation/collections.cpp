// Arrays, dictionaries, sets and caches.
#include <algorithm>
#include <iterator>

#include <csrc/host/objc/blocks.h>
#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSArray)
METALOPS_OBJC_CLASS(NSMutableArray)
METALOPS_OBJC_CLASS(NSDictionary)
METALOPS_OBJC_CLASS(NSMutableDictionary)
METALOPS_OBJC_CLASS(NSCache)
METALOPS_OBJC_CLASS(NSSet)
METALOPS_OBJC_CLASS(NSMutableSet)

namespace metalops::objc {
namespace {

// The state of a for-in loop: NSFastEnumerationState.
struct Enumeration {
  unsigned long state;
  id* items;
  unsigned long* mutations;
  unsigned long extra[5];
};

// Gives the loop its next objects: object_of(element) for elements from number state->state on.
template <class State, class Object>
UInteger enumerate(State* self, Enumeration* state, id* buffer, UInteger room, Object object_of) {
  const size_t count = self->items.size();
  auto item = std::next(self->items.begin(), static_cast<long>(std::min(state->state, count)));
  UInteger given = 0;
  for (; given < room && state->state < count; ++given, ++item, ++state->state) {
    buffer[given] = object_of(*item);
  }
  state->items = buffer;
  state->mutations = &self->mutations;
  return given;
}

// Methods that all collections have. `unchanging` and `changing` are the class and its mutable
// subclass.
template <class State, objc_class* unchanging, objc_class* changing>
struct Collection {
  static id copied(const State* from, Class cls) {
    auto* made = make<State>(cls);
    made->items = from->items;
    return made;
  }
  static UInteger count(State* self, SEL) { return self->items.size(); }
  static id copy(State* self, SEL) {
    return is_kind_of(self, changing) ? copied(self, unchanging) : objc_retain(self);
  }
  static id mutable_copy(State* self, SEL) { return copied(self, changing); }
  static id empty(id cls, SEL) { return autoreleased(allocate(as_class(cls))); }
  static id init_as(State* self, SEL, State* other) {
    self->items = other->items;
    return self;
  }
  static id made_as(id cls, SEL, State* other) {
    return autoreleased(copied(other, as_class(cls)));
  }
  static void remove_all(State* self, SEL) {
    ++self->mutations;
    self->items.clear();
  }
};
id with_capacity(id cls, SEL, UInteger) { return autoreleased(allocate(as_class(cls))); }
id keep_capacity(id self, SEL, UInteger) { return self; }

using Arrays = Collection<Array, &class_NSArray, &class_NSMutableArray>;
using Dictionaries = Collection<Dictionary, &class_NSDictionary, &class_NSMutableDictionary>;
using Sets = Collection<Dictionary, &class_NSSet, &class_NSMutableSet>;

// A description: each element on a line of its own.
template <class State, class F>
id listed(State* self, const char* open, const char* close, F describe_item) {
  std::string text = open;
  for (const auto& one : self->items) text += "\n    " + describe_item(one);
  return string(text + "\n" + close);
}

void check_object(id object, id self, SEL method) {
  if (object == nullptr) raise(kInvalidArgument, written(self, method) + ": the object is nil");
}

void check_index(Array* self, SEL method, UInteger index, size_t count) {
  if (index < count) return;
  raise(kRangeException, written(self, method) + ": index " + std::to_string(index) +
                             " is beyond the " + std::to_string(self->items.size()) + " objects");
}

// ---- arrays

void add(Array* self, SEL method, id object) {
  check_object(object, self, method);
  ++self->mutations;
  self->items.emplace_back(object);
}

id item(Array* self, SEL method, UInteger index) {
  check_index(self, method, index, self->items.size());
  return self->items[index];
}

void replace(Array* self, SEL method, UInteger index, id object) {
  check_object(object, self, method);
  check_index(self, method, index, self->items.size());
  ++self->mutations;
  self->items[index] = Strong(object);
}

id array_with_objects(id cls, SEL method, id first, ...) {
  auto* made = make<Array>(as_class(cls));
  va_list arguments;
  va_start(arguments, first);
  for (id one = first; one != nullptr; one = va_arg(arguments, id)) add(made, method, one);
  va_end(arguments);
  return autoreleased(made);
}
id array_init_with_objects(Array* self, SEL method, id first, ...) {
  va_list arguments;
  va_start(arguments, first);
  for (id one = first; one != nullptr; one = va_arg(arguments, id)) add(self, method, one);
  va_end(arguments);
  return self;
}
id array_fill(Array* self, SEL method, const id* objects, UInteger count) {
  for (UInteger i = 0; i < count; ++i) add(self, method, objects[i]);
  return self;
}
std::vector<Strong>::iterator find(Array* self, id object) {
  return std::find_if(self->items.begin(), self->items.end(),
                      [&](id mine) { return equal(mine, object); });
}
void define_arrays() {
  define<Array>(
      METALOPS_OBJC_SYMBOLS(NSArray), &class_NSObject,
      {
          {"initWithObjects:", array_init_with_objects},
          {"initWithObjects:count:", array_fill},
          {"initWithArray:", Arrays::init_as},
          {"count", Arrays::count},
          {"objectAtIndex:", item},
          {"objectAtIndexedSubscript:", item},
          {"firstObject",
           [](Array* self, SEL) {
             return self->items.empty() ? nullptr : self->items.front().get();
           }},
          {"lastObject",
           [](Array* self, SEL) {
             return self->items.empty() ? nullptr : self->items.back().get();
           }},
          {"containsObject:",
           [](Array* self, SEL, id object) { return find(self, object) != self->items.end(); }},
          {"indexOfObject:",
           [](Array* self, SEL, id object) {
             const auto found = find(self, object);
             return found != self->items.end() ? found - self->items.begin() : INTPTR_MAX;
           }},
          {"isEqual:",
           [](Array* self, SEL, id other) {
             if (!is_kind_of(other, &class_NSArray)) return false;
             const auto& items = static_cast<Array*>(other)->items;
             return std::equal(self->items.begin(), self->items.end(), items.begin(), items.end(),
                               [](id a, id b) { return equal(a, b); });
           }},
          {"isEqualToArray:",
           [](Array* self, SEL, id other) { return send<bool>(self, "isEqual:", other); }},
          {"hash", Arrays::count},
          {"arrayByAddingObject:",
           [](Array* self, SEL method, id object) {
             auto* made = static_cast<Array*>(autoreleased(Arrays::copied(self, &class_NSArray)));
             add(made, method, object);
             return made;
           }},
          {"subarrayWithRange:",
           [](Array* self, SEL method, Range range) -> id {
             if (range.length > 0) {
               check_index(self, method, range.location + range.length - 1, self->items.size());
             }
             auto* made = make<Array>(&class_NSArray);
             for (UInteger i = 0; i < range.length; ++i) {
               made->items.push_back(self->items[range.location + i]);
             }
             return autoreleased(made);
           }},
          {"componentsJoinedByString:",
           [](Array* self, SEL, id separator) {
             std::string text;
             for (size_t i = 0; i < self->items.size(); ++i) {
               if (i != 0) text += text_of(separator);
               text += describe(self->items[i]);
             }
             return string(text);
           }},
          {"sortedArrayUsingSelector:",
           [](Array* self, SEL, SEL comparator) {
             auto* made = static_cast<Array*>(Arrays::copied(self, &class_NSArray));
             std::stable_sort(made->items.begin(), made->items.end(), [&](id a, id b) {
               const auto compare = reinterpret_cast<long (*)(id, SEL, id)>(lookup(a, comparator));
               return compare(a, comparator, b) < 0;
             });
             return autoreleased(made);
           }},
          {"enumerateObjectsUsingBlock:",
           [](Array* self, SEL, id block) {
             const std::vector<Strong> items = self->items;
             bool stop = false;
             for (UInteger i = 0; i < items.size() && !stop; ++i) {
               call_block<void, id, UInteger, bool*>(block, items[i], i, &stop);
             }
           }},
          {"countByEnumeratingWithState:objects:count:",
           [](Array* self, SEL, Enumeration* state, id* buffer, UInteger room) {
             return enumerate(self, state, buffer, room,
                              [](const Strong& one) { return one.get(); });
           }},
          {"copy", Arrays::copy},
          {"mutableCopy", Arrays::mutable_copy},
          {"description",
           [](Array* self, SEL) {
             return listed(self, "(", ")", [](id one) { return describe(one) + ","; });
           }},
      },
      {
          {"array", Arrays::empty},
          {"arrayWithObject:",
           [](id cls, SEL method, id object) {
             auto* made = make<Array>(as_class(cls));
             add(made, method, object);
             return autoreleased(made);
           }},
          {"arrayWithObjects:", array_with_objects},
          {"arrayWithObjects:count:",
           [](id cls, SEL method, const id* objects, UInteger count) {
             return autoreleased(array_fill(make<Array>(as_class(cls)), method, objects, count));
           }},
          {"arrayWithArray:", Arrays::made_as},
      },
      {"NSCopying", "NSMutableCopying", "NSFastEnumeration"});

  define<Array>(METALOPS_OBJC_SYMBOLS(NSMutableArray), &class_NSArray,
                {
                    {"initWithCapacity:", keep_capacity},
                    {"addObject:", add},
                    {"addObjectsFromArray:",
                     [](Array* self, SEL, Array* other) {
                       const std::vector<Strong> items = other->items;
                       ++self->mutations;
                       self->items.insert(self->items.end(), items.begin(), items.end());
                     }},
                    {"insertObject:atIndex:",
                     [](Array* self, SEL method, id object, UInteger index) {
                       check_object(object, self, method);
                       check_index(self, method, index, self->items.size() + 1);
                       ++self->mutations;
                       self->items.insert(self->items.begin() + static_cast<long>(index),
                                          Strong(object));
                     }},
                    {"replaceObjectAtIndex:withObject:", replace},
                    {"setObject:atIndexedSubscript:",
                     [](Array* self, SEL method, id object, UInteger index) {
                       if (index == self->items.size()) return add(self, method, object);
                       replace(self, method, index, object);
                     }},
                    {"removeObject:",
                     [](Array* self, SEL, id object) {
                       ++self->mutations;
                       const Strong kept(object);
                       std::erase_if(self->items, [&](id mine) { return equal(mine, object); });
                     }},
                    {"removeObjectAtIndex:",
                     [](Array* self, SEL method, UInteger index) {
                       check_index(self, method, index, self->items.size());
                       ++self->mutations;
                       self->items.erase(self->items.begin() + static_cast<long>(index));
                     }},
                    {"removeLastObject",
                     [](Array* self, SEL method) {
                       check_index(self, method, 0, self->items.size());
                       ++self->mutations;
                       self->items.pop_back();
                     }},
                    {"removeAllObjects", Arrays::remove_all},
                },
                {{"arrayWithCapacity:", with_capacity}});
}

// ---- dictionaries

id value(Dictionary* self, SEL, id key) {
  if (key == nullptr) return nullptr;
  const auto found = self->items.find(Strong(key));
  return found != self->items.end() ? found->second.get() : nullptr;
}

void set(Dictionary* self, SEL method, id object, id key) {
  check_object(object, self, method);
  if (key == nullptr) raise(kInvalidArgument, written(self, method) + ": the key is nil");
  const auto found = self->items.find(Strong(key));
  if (found != self->items.end()) {
    found->second = Strong(object);
    return;
  }
  ++self->mutations;
  self->items.emplace(Strong::taken(send(key, "copy")), Strong(object));
}

void erase(Dictionary* self, SEL, id key) {
  if (key != nullptr && self->items.erase(Strong(key)) != 0) ++self->mutations;
}

// nil removes the object of the key.
void set_or_erase(Dictionary* self, SEL method, id object, id key) {
  if (object == nullptr) return erase(self, method, key);
  set(self, method, object, key);
}

void fill(Dictionary* self, SEL method, id first, va_list arguments) {
  for (id object = first; object != nullptr; object = va_arg(arguments, id)) {
    set(self, method, object, va_arg(arguments, id));
  }
}
id dictionary_with_pairs(id cls, SEL method, id first, ...) {
  auto* made = make<Dictionary>(as_class(cls));
  va_list arguments;
  va_start(arguments, first);
  fill(made, method, first, arguments);
  va_end(arguments);
  return autoreleased(made);
}
id dictionary_init_with_pairs(Dictionary* self, SEL method, id first, ...) {
  va_list arguments;
  va_start(arguments, first);
  fill(self, method, first, arguments);
  va_end(arguments);
  return self;
}
template <class Member>
id all(Dictionary* self, Member member) {
  std::vector<id> items;
  for (const auto& entry : self->items) items.push_back(entry.*member);
  return array(items);
}
using Entry = std::pair<const Strong, Strong>;

void define_dictionaries() {
  define<Dictionary>(
      METALOPS_OBJC_SYMBOLS(NSDictionary), &class_NSObject,
      {
          {"initWithDictionary:", Dictionaries::init_as},
          {"initWithObjectsAndKeys:", dictionary_init_with_pairs},
          {"count", Dictionaries::count},
          {"objectForKey:", value},
          {"objectForKeyedSubscript:", value},
          {"valueForKey:", value},
          {"allKeys", [](Dictionary* self, SEL) { return all(self, &Entry::first); }},
          {"allValues", [](Dictionary* self, SEL) { return all(self, &Entry::second); }},
          {"isEqual:",
           [](Dictionary* self, SEL method, id object) {
             if (!is_kind_of(object, &class_NSDictionary)) return false;
             auto* other = static_cast<Dictionary*>(object);
             return self->items.size() == other->items.size() &&
                    std::all_of(self->items.begin(), self->items.end(), [&](const Entry& entry) {
                      return equal(entry.second, value(other, method, entry.first));
                    });
           }},
          {"isEqualToDictionary:",
           [](id self, SEL, id other) { return send<bool>(self, "isEqual:", other); }},
          {"hash", Dictionaries::count},
          {"enumerateKeysAndObjectsUsingBlock:",
           [](Dictionary* self, SEL, id block) {
             const auto items = self->items;
             bool stop = false;
             for (const auto& [key, object] : items) {
               if (stop) break;
               call_block<void, id, id, bool*>(block, key, object, &stop);
             }
           }},
          {"countByEnumeratingWithState:objects:count:",
           [](Dictionary* self, SEL, Enumeration* state, id* buffer, UInteger room) {
             return enumerate(self, state, buffer, room,
                              [](const Entry& entry) { return entry.first.get(); });
           }},
          {"copy", Dictionaries::copy},
          {"mutableCopy", Dictionaries::mutable_copy},
          {"description",
           [](Dictionary* self, SEL) {
             return listed(self, "{", "}", [](const Entry& entry) {
               return describe(entry.first) + " = " + describe(entry.second) + ";";
             });
           }},
      },
      {
          {"dictionary", Dictionaries::empty},
          {"dictionaryWithObject:forKey:",
           [](id cls, SEL method, id object, id key) {
             auto* made = make<Dictionary>(as_class(cls));
             set(made, method, object, key);
             return autoreleased(made);
           }},
          {"dictionaryWithObjects:forKeys:count:",
           [](id cls, SEL method, const id* objects, const id* keys, UInteger count) {
             auto* made = make<Dictionary>(as_class(cls));
             for (UInteger i = 0; i < count; ++i) set(made, method, objects[i], keys[i]);
             return autoreleased(made);
           }},
          {"dictionaryWithObjects:forKeys:",
           [](id cls, SEL method, Array* objects, Array* keys) {
             auto* made = make<Dictionary>(as_class(cls));
             for (UInteger i = 0; i < objects->items.size(); ++i) {
               set(made, method, objects->items[i], item(keys, method, i));
             }
             return autoreleased(made);
           }},
          {"dictionaryWithObjectsAndKeys:", dictionary_with_pairs},
          {"dictionaryWithDictionary:", Dictionaries::made_as},
      },
      {"NSCopying", "NSMutableCopying", "NSFastEnumeration"});

  define<Dictionary>(METALOPS_OBJC_SYMBOLS(NSMutableDictionary), &class_NSDictionary,
                     {
                         {"initWithCapacity:", keep_capacity},
                         {"setObject:forKey:", set},
                         {"setObject:forKeyedSubscript:", set_or_erase},
                         {"setValue:forKey:", set_or_erase},
                         {"addEntriesFromDictionary:",
                          [](Dictionary* self, SEL method, Dictionary* other) {
                            const auto items = other->items;
                            for (const auto& [key, object] : items) set(self, method, object, key);
                          }},
                         {"removeObjectForKey:", erase},
                         {"removeAllObjects", Dictionaries::remove_all},
                     },
                     {{"dictionaryWithCapacity:", with_capacity}});

  define<Dictionary>(METALOPS_OBJC_SYMBOLS(NSCache), &class_NSObject,
                     {
                         {"objectForKey:", value},
                         {"setObject:forKey:", set},
                         {"removeObjectForKey:", erase},
                         {"removeAllObjects", Dictionaries::remove_all},
                     });
}

// ---- sets: dictionaries whose objects are their own keys

void insert(Dictionary* self, SEL method, id object) {
  check_object(object, self, method);
  if (self->items.emplace(Strong(object), Strong(object)).second) ++self->mutations;
}
id set_with_objects(id cls, SEL method, id first, ...) {
  auto* made = make<Dictionary>(as_class(cls));
  va_list arguments;
  va_start(arguments, first);
  for (id one = first; one != nullptr; one = va_arg(arguments, id)) insert(made, method, one);
  va_end(arguments);
  return autoreleased(made);
}

void define_sets() {
  define<Dictionary>(
      METALOPS_OBJC_SYMBOLS(NSSet), &class_NSObject,
      {
          {"count", Sets::count},
          {"containsObject:", [](Dictionary* self, SEL method,
                                 id object) { return value(self, method, object) != nullptr; }},
          {"allObjects", [](Dictionary* self, SEL) { return all(self, &Entry::first); }},
          {"countByEnumeratingWithState:objects:count:",
           [](Dictionary* self, SEL, Enumeration* state, id* buffer, UInteger room) {
             return enumerate(self, state, buffer, room,
                              [](const Entry& entry) { return entry.first.get(); });
           }},
          {"copy", Sets::copy},
          {"mutableCopy", Sets::mutable_copy},
          {"description",
           [](Dictionary* self, SEL) {
             return listed(self, "{(", ")}",
                           [](const Entry& entry) { return describe(entry.first) + ","; });
           }},
      },
      {
          {"set", Sets::empty},
          {"setWithObject:",
           [](id cls, SEL method, id object) {
             auto* made = make<Dictionary>(as_class(cls));
             insert(made, method, object);
             return autoreleased(made);
           }},
          {"setWithObjects:", set_with_objects},
          {"setWithArray:",
           [](id cls, SEL method, Array* from) {
             auto* made = make<Dictionary>(as_class(cls));
             for (id one : from->items) insert(made, method, one);
             return autoreleased(made);
           }},
      },
      {"NSCopying", "NSMutableCopying", "NSFastEnumeration"});

  define<Dictionary>(
      METALOPS_OBJC_SYMBOLS(NSMutableSet), &class_NSSet,
      {{"addObject:", insert}, {"removeObject:", erase}, {"removeAllObjects", Sets::remove_all}});
}

}  // namespace

size_t ObjectHash::operator()(const Strong& object) const {
  return send<UInteger>(object.get(), "hash");
}
bool ObjectEqual::operator()(const Strong& a, const Strong& b) const { return equal(a, b); }

id array(const std::vector<id>& items) {
  auto* made = make<Array>(&class_NSArray);
  made->items.assign(items.begin(), items.end());
  return autoreleased(made);
}

id dictionary(const std::vector<std::pair<id, id>>& items) {
  auto* made = make<Dictionary>(&class_NSDictionary);
  for (const auto& [key, object] : items) made->items.emplace(Strong(key), Strong(object));
  return autoreleased(made);
}

void define_collections() {
  define_arrays();
  define_dictionaries();
  define_sets();
}

}  // namespace metalops::objc
