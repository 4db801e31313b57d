// NSFileManager and NSBundle.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>

#include <csrc/host/objc/foundation.h>

METALOPS_OBJC_CLASS(NSFileManager)
METALOPS_OBJC_CLASS(NSBundle)

namespace metalops::objc {
namespace {

id file_error(const std::string& path) {
  return error("NSCocoaErrorDomain", 260,
               "The file “" + path + "” couldn’t be opened: " + std::strerror(errno));
}

id attributes(id, SEL, id path, id* out) {
  struct stat info;
  if (lstat(text_of(path).c_str(), &info) != 0) return fail(out, file_error(text_of(path)));
  const char* type = S_ISLNK(info.st_mode)   ? "NSFileTypeSymbolicLink"
                     : S_ISDIR(info.st_mode) ? "NSFileTypeDirectory"
                                             : "NSFileTypeRegular";
  return dictionary({{string("NSFileType"), string(type)},
                     {string("NSFileSize"), number(static_cast<UInteger>(info.st_size))}});
}

id destination(id, SEL, id path, id* out) {
  char target[PATH_MAX];
  const ssize_t length = readlink(text_of(path).c_str(), target, sizeof target);
  if (length < 0) return fail(out, file_error(text_of(path)));
  return string(std::string(target, static_cast<size_t>(length)));
}

id contents_of_folder(id, SEL, id path, id* out) {
  DIR* folder = opendir(text_of(path).c_str());
  if (folder == nullptr) return fail(out, file_error(text_of(path)));
  std::vector<id> names;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(string(name));
  }
  closedir(folder);
  return array(names);
}

bool is_folder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void define_file_manager() {
  define<objc_object>(
      METALOPS_OBJC_SYMBOLS(NSFileManager), &class_NSObject,
      {
          {"fileExistsAtPath:", [](id, SEL, id path) { return exists(text_of(path)); }},
          {"fileExistsAtPath:isDirectory:",
           [](id, SEL, id path, bool* folder) {
             if (folder != nullptr) *folder = is_folder(text_of(path));
             return exists(text_of(path));
           }},
          {"isReadableFileAtPath:",
           [](id, SEL, id path) { return access(text_of(path).c_str(), R_OK) == 0; }},
          {"contentsAtPath:",
           [](id, SEL, id path) {
             return send(reinterpret_cast<id>(&class_NSData), "dataWithContentsOfFile:", path);
           }},
          {"contentsOfDirectoryAtPath:error:", contents_of_folder},
          {"attributesOfItemAtPath:error:", attributes},
          {"destinationOfSymbolicLinkAtPath:error:", destination},
          {"removeItemAtPath:error:",
           [](id, SEL, id path, id* out) {
             if (remove(text_of(path).c_str()) == 0) return true;
             fail(out, file_error(text_of(path)));
             return false;
           }},
          {"currentDirectoryPath",
           [](id, SEL) {
             char path[PATH_MAX];
             return string(getcwd(path, sizeof path) != nullptr ? path : "");
           }},
      },
      {{"defaultManager", [](id, SEL) {
          static id one = allocate(&class_NSFileManager);
          return one;
        }}});
}

// A bundle is a folder here.
id bundle(const std::string& path) {
  auto* made = make<Url>(&class_NSBundle);
  made->path = path;
  return autoreleased(made);
}

std::string resource(Url* self, id name, id extension, id folder = nullptr) {
  std::string path = join(join(self->path, text_of(folder)), text_of(name));
  if (!text_of(extension).empty()) path += "." + text_of(extension);
  return path;
}

void define_bundle() {
  define<Url>(
      METALOPS_OBJC_SYMBOLS(NSBundle), &class_NSObject,
      {
          {"initWithPath:",
           [](Url* self, SEL, id path) -> id {
             self->path = text_of(path);
             return self;
           }},
          {"bundlePath", [](Url* self, SEL) { return string(self->path); }},
          {"bundleURL", [](Url* self, SEL) { return url(self->path); }},
          {"resourcePath", [](Url* self, SEL) { return string(self->path); }},
          {"resourceURL", [](Url* self, SEL) { return url(self->path); }},
          {"executablePath", [](Url*, SEL) { return string(executable()); }},
          {"bundleIdentifier", [](Url*, SEL) -> id { return nullptr; }},
          {"objectForInfoDictionaryKey:", [](Url*, SEL, id) -> id { return nullptr; }},
          {"pathForResource:ofType:",
           [](Url* self, SEL, id name, id extension) {
             const std::string path = resource(self, name, extension);
             return exists(path) ? string(path) : nullptr;
           }},
          {"pathForResource:ofType:inDirectory:",
           [](Url* self, SEL, id name, id extension, id folder) {
             const std::string path = resource(self, name, extension, folder);
             return exists(path) ? string(path) : nullptr;
           }},
          {"URLForResource:withExtension:",
           [](Url* self, SEL, id name, id extension) {
             const std::string path = resource(self, name, extension);
             return exists(path) ? url(path) : nullptr;
           }},
      },
      {
          // The folder of the program, which for an extension is Python's, as on a Mac.
          {"mainBundle", [](id, SEL) { return bundle(folder_of(executable())); }},
          // The folder of the program or library that has the class.
          {"bundleForClass:", [](id, SEL, Class cls) { return bundle(folder_of(image_of(cls))); }},
          {"bundleWithPath:",
           [](id, SEL, id path) {
             return is_folder(text_of(path)) ? bundle(text_of(path)) : nullptr;
           }},
          {"bundleWithURL:",
           [](id, SEL, Url* url) { return is_folder(url->path) ? bundle(url->path) : nullptr; }},
      });
}

}  // namespace

bool read_file(const std::string& path, std::string& contents) {
  errno = is_folder(path) ? EISDIR : 0;
  std::ifstream file(path, std::ios::binary);
  if (!file || is_folder(path)) return false;
  std::ostringstream text;
  text << file.rdbuf();
  contents = text.str();
  return true;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return "";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string join(const std::string& folder, const std::string& name) {
  if (folder.empty() || name.empty()) return folder + name;
  return folder.back() == '/' || name[0] == '/' ? folder + name : folder + "/" + name;
}

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

std::string executable() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string image_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : executable();
}

void define_files() {
  define_file_manager();
  define_bundle();
}

}  // namespace metalops::objc
