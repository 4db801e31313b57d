// The process, its threads and locks, and the functions of Foundation.
#include <objc/runtime.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSProcessInfo)
METALOPS_OBJC_CLASS(NSLock)
METALOPS_OBJC_CLASS(NSRecursiveLock)
METALOPS_OBJC_CLASS(NSDate)
METALOPS_OBJC_CLASS(NSThread)

extern "C" char** environ;

namespace metalops::objc {
namespace {

// The version of the newest macOS that torch checks for, as everywhere on the software device.
struct SystemVersion {
  long major, minor, patch;
};
constexpr SystemVersion kVersion{26, 4, 0};

double seconds(auto since) { return std::chrono::duration<double>(since).count(); }

void define_process_info() {
  define<objc_object>(
      METALOPS_OBJC_SYMBOLS(NSProcessInfo), &class_NSObject,
      {
          {"operatingSystemVersion", [](id, SEL) { return kVersion; }},
          {"operatingSystemVersionString",
           [](id, SEL) { return string("Version 26.4 (software Metal device)"); }},
          {"isOperatingSystemAtLeastVersion:",
           [](id, SEL, SystemVersion wanted) {
             return std::tie(wanted.major, wanted.minor, wanted.patch) <=
                    std::tie(kVersion.major, kVersion.minor, kVersion.patch);
           }},
          {"environment",
           [](id, SEL) {
             std::vector<std::pair<id, id>> entries;
             for (char** one = environ; *one != nullptr; ++one) {
               const std::string text = *one;
               const size_t equals = text.find('=');
               if (equals == std::string::npos) continue;
               entries.emplace_back(string(text.substr(0, equals)),
                                    string(text.substr(equals + 1)));
             }
             return dictionary(entries);
           }},
          {"arguments",
           [](id, SEL) {
             std::ifstream file("/proc/self/cmdline", std::ios::binary);
             std::vector<id> words;
             for (std::string word; std::getline(file, word, '\0');) words.push_back(string(word));
             return array(words);
           }},
          {"processName", [](id, SEL) { return send(string(executable()), "lastPathComponent"); }},
          {"processIdentifier", [](id, SEL) { return static_cast<int>(getpid()); }},
          {"physicalMemory",
           [](id, SEL) {
             return static_cast<unsigned long long>(sysconf(_SC_PHYS_PAGES)) *
                    static_cast<unsigned long long>(sysconf(_SC_PAGE_SIZE));
           }},
          {"processorCount",
           [](id, SEL) { return static_cast<UInteger>(std::thread::hardware_concurrency()); }},
          {"activeProcessorCount",
           [](id, SEL) { return static_cast<UInteger>(std::thread::hardware_concurrency()); }},
          {"systemUptime",
           [](id, SEL) { return seconds(std::chrono::steady_clock::now().time_since_epoch()); }},
      },
      {{"processInfo", [](id, SEL) {
          static id one = allocate(&class_NSProcessInfo);
          return one;
        }}});
}

struct Named : objc_object {
  Strong name;
};
struct Lock : Named {
  std::mutex mutex;
};
struct RecursiveLock : Named {
  std::recursive_mutex mutex;
};

template <class State>
void define_lock(ClassSymbols symbols) {
  define<State>(symbols, &class_NSObject,
                {
                    {"lock", [](State* self, SEL) { self->mutex.lock(); }},
                    {"unlock", [](State* self, SEL) { self->mutex.unlock(); }},
                    {"tryLock", [](State* self, SEL) { return self->mutex.try_lock(); }},
                    {"name", [](State* self, SEL) { return self->name.get(); }},
                    {"setName:", [](State* self, SEL, id name) { self->name = Strong(name); }},
                },
                {}, {"NSLocking"});
}

struct Date : objc_object {
  double since_1970 = seconds(std::chrono::system_clock::now().time_since_epoch());
};

}  // namespace

void define_process() {
  define_process_info();
  define_lock<Lock>(METALOPS_OBJC_SYMBOLS(NSLock));
  define_lock<RecursiveLock>(METALOPS_OBJC_SYMBOLS(NSRecursiveLock));
  define<Date>(
      METALOPS_OBJC_SYMBOLS(NSDate), &class_NSObject,
      {
          {"timeIntervalSince1970", Accessors<&Date::since_1970>::get},
          {"timeIntervalSinceDate:",
           [](Date* self, SEL, Date* other) { return self->since_1970 - other->since_1970; }},
          {"timeIntervalSinceNow",
           [](Date* self, SEL) { return self->since_1970 - Date().since_1970; }},
          {"copy", [](id self, SEL) { return objc_retain(self); }},
      },
      {{"date", [](id cls, SEL) { return autoreleased(allocate(reinterpret_cast<Class>(cls))); }}});
  define<objc_object>(METALOPS_OBJC_SYMBOLS(NSThread), &class_NSObject, {},
                      {
                          {"isMainThread", [](id, SEL) { return syscall(SYS_gettid) == getpid(); }},
                          {"sleepForTimeInterval:",
                           [](id, SEL, double time) {
                             std::this_thread::sleep_for(std::chrono::duration<double>(time));
                           }},
                      });
}

}  // namespace metalops::objc

using namespace metalops::objc;

extern "C" {

void NSLog(id text, ...) {
  va_list arguments;
  va_start(arguments, text);
  const std::string line = format(text, arguments);
  va_end(arguments);
  std::fprintf(stderr, "%s\n", line.c_str());
}
id NSStringFromClass(Class cls) { return cls != nullptr ? string(cls->name) : nullptr; }
id NSStringFromProtocol(Protocol* protocol) { return string(protocol_getName(protocol)); }
id NSStringFromSelector(SEL selector) { return string(sel_getName(selector)); }
Class NSClassFromString(id name) { return objc_lookUpClass(text_of(name).c_str()); }
SEL NSSelectorFromString(id name) { return sel_registerName(text_of(name).c_str()); }
id NSTemporaryDirectory(void) {
  const char* folder = std::getenv("TMPDIR");
  return string(join(folder != nullptr ? folder : "/tmp", "") + "/");
}
id NSHomeDirectory(void) {
  const char* folder = std::getenv("HOME");
  return string(folder != nullptr ? folder : "/");
}

}  // extern "C"
