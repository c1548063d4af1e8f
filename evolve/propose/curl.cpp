#include "evolve/propose/curl.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace attune::evolve::curl {
namespace {

constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.4.dylib"};
constexpr long kInitAll = 3;

template <class Function>
void load(void* library, const char* name, Function* function, std::string* problem) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *problem = fmt::format("libcurl has no {}: it is too old", name);
}

Api open_curl() {
  Api a;
  void* library = nullptr;
  for (const char* name : kNames)
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    a.problem =
        "libcurl is needed to ask a language model, and is not installed (Debian, Ubuntu: apt "
        "install libcurl4; Fedora: dnf install libcurl)";
    return a;
  }
  load(library, "curl_global_init", &a.global_init, &a.problem);
  load(library, "curl_easy_init", &a.easy_init, &a.problem);
  load(library, "curl_easy_cleanup", &a.easy_cleanup, &a.problem);
  load(library, "curl_easy_setopt", &a.easy_setopt, &a.problem);
  load(library, "curl_easy_getinfo", &a.easy_getinfo, &a.problem);
  load(library, "curl_easy_strerror", &a.easy_strerror, &a.problem);
  load(library, "curl_slist_append", &a.slist_append, &a.problem);
  load(library, "curl_slist_free_all", &a.slist_free_all, &a.problem);
  load(library, "curl_multi_init", &a.multi_init, &a.problem);
  load(library, "curl_multi_cleanup", &a.multi_cleanup, &a.problem);
  load(library, "curl_multi_add_handle", &a.multi_add_handle, &a.problem);
  load(library, "curl_multi_remove_handle", &a.multi_remove_handle, &a.problem);
  load(library, "curl_multi_perform", &a.multi_perform, &a.problem);
  load(library, "curl_multi_wait", &a.multi_wait, &a.problem);
  load(library, "curl_multi_info_read", &a.multi_info_read, &a.problem);
  if (a.problem.empty() && a.global_init(kInitAll) != kOk)
    a.problem = "libcurl cannot be initialised";
  return a;
}

}  // namespace

const Api& api() {
  static const Api the_api = open_curl();
  return the_api;
}

}  // namespace attune::evolve::curl
