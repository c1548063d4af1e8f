// libcurl, opened at run time: nothing of it is needed to build, or where no endpoint is asked. The
// few constants of its stable interface that we use are declared here.
#pragma once

#include <string>

namespace attune::evolve::curl {

using Easy = void;
using Multi = void;
struct List;

// As in curl/curl.h: 0 is a long, 10000 a pointer, 20000 a function, 30000 a 64-bit number.
enum Option : int {
  kPost = 47,
  kFollowLocation = 52,
  kVerifyPeer = 64,
  kVerifyHost = 81,
  kNoSignal = 99,
  kTimeoutMs = 155,
  kConnectTimeoutMs = 156,
  kProtocols = 181,
  kWriteData = 10001,
  kUrl = 10002,
  kErrorBuffer = 10010,
  kPostFields = 10015,
  kUserAgent = 10018,
  kHttpHeader = 10023,
  kHeaderData = 10029,
  kNoProxy = 10177,
  kWriteFunction = 20011,
  kHeaderFunction = 20079,
  kOpenSocketFunction = 20163,
  kPostFieldSizeLarge = 30120,
};
enum Info : int { kRedirectUrl = 0x100000 + 31, kResponseCode = 0x200000 + 2 };
constexpr long kHttpAndHttps = 1 | 2;
constexpr size_t kErrorSize = 256;
constexpr int kMessageDone = 1;
constexpr int kOk = 0, kCannotResolve = 6, kCannotConnect = 7, kPartial = 18, kTimedOut = 28;
constexpr int kPeerCertificate = 60, kCaFile = 77;

struct Message {
  int kind;
  Easy* easy;
  union {
    void* whatever;
    int result;
  } data;
};

struct Address {
  int family, type, protocol;
  unsigned length;
  // the address itself follows
};

struct Api {
  int (*global_init)(long) = nullptr;
  Easy* (*easy_init)() = nullptr;
  void (*easy_cleanup)(Easy*) = nullptr;
  int (*easy_setopt)(Easy*, int, ...) = nullptr;
  int (*easy_getinfo)(Easy*, int, ...) = nullptr;
  const char* (*easy_strerror)(int) = nullptr;
  List* (*slist_append)(List*, const char*) = nullptr;
  void (*slist_free_all)(List*) = nullptr;
  Multi* (*multi_init)() = nullptr;
  int (*multi_cleanup)(Multi*) = nullptr;
  int (*multi_add_handle)(Multi*, Easy*) = nullptr;
  int (*multi_remove_handle)(Multi*, Easy*) = nullptr;
  int (*multi_perform)(Multi*, int*) = nullptr;
  int (*multi_wait)(Multi*, void*, unsigned, int, int*) = nullptr;
  Message* (*multi_info_read)(Multi*, int*) = nullptr;
  std::string problem;  // not empty: it cannot be used, and what to do
};
const Api& api();

}  // namespace attune::evolve::curl
