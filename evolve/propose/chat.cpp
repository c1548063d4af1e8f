#include "evolve/propose/chat.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <thread>

#include "evolve/propose/curl.hpp"
#include "evolve/propose/dice.hpp"
#include "evolve/propose/reply.hpp"

namespace attune::evolve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kErrorBytes = 64 << 10;  // of a body that is no answer
constexpr int kRedirects = 3;
constexpr double kLongestPause = 120;  // seconds that a server may make us wait
constexpr size_t kShortestSecret = 6;

double since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

struct Parts {
  std::string scheme, host, port, path;
};

std::string lower(std::string text) {
  for (char& c : text) c = char(std::tolower(uint8_t(c)));
  return text;
}

Parts parts_of(const std::string& url) {
  Parts p;
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) return p;
  p.scheme = lower(url.substr(0, scheme));
  const size_t begin = scheme + 3, end = std::min(url.find_first_of("/?#", begin), url.size());
  p.host = lower(url.substr(begin, end - begin));
  p.path = url.substr(end);
  const size_t colon = p.host.rfind(':');
  if (colon != std::string::npos && p.host.find(']', colon) == std::string::npos) {
    p.port = p.host.substr(colon + 1);
    p.host.resize(colon);
  }
  if (p.port.empty()) p.port = p.scheme == "https" ? "443" : "80";
  return p;
}

// One request, without a retry.
struct Try {
  explicit Try(const curl::Api& opened) : api(opened) {}

  const curl::Api& api;
  curl::Easy* easy = nullptr;
  size_t most_bytes = 0, bytes = 0;
  ReplyReader reader;
  std::string body, retry_after, redirect;
  bool too_large = false;
  long status = 0;
  int result = 0;
  char words[curl::kErrorSize] = "";
  Clock::time_point last = Clock::now();
  enum class Cut { no, stopped, idle, total } cut = Cut::no;
};

size_t on_bytes(char* data, size_t size, size_t count, void* to) {
  Try& t = *static_cast<Try*>(to);
  const size_t bytes = size * count;
  t.last = Clock::now();
  t.bytes += bytes;
  if (t.bytes > t.most_bytes) {
    t.too_large = true;
    return 0;
  }
  t.api.easy_getinfo(t.easy, curl::kResponseCode, &t.status);
  if (t.status == 200)
    t.reader.feed({data, bytes});
  else if (t.body.size() < kErrorBytes)
    t.body.append(data, bytes);
  return bytes;
}

size_t on_header(char* data, size_t size, size_t count, void* to) {
  Try& t = *static_cast<Try*>(to);
  t.last = Clock::now();
  const std::string line(data, size * count);
  constexpr std::string_view kName = "retry-after:";
  if (line.starts_with("HTTP/")) t.retry_after.clear();
  if (lower(line.substr(0, kName.size())) == kName) {
    const size_t begin = std::min(line.find_first_not_of(" \t", kName.size()), line.size());
    t.retry_after = line.substr(begin, line.find_last_not_of(" \t\r\n") + 1 - begin);
  }
  return size * count;
}

// Candidates and compilers are started meanwhile: none of them may have the connection.
int on_socket(void*, int, curl::Address* address) {
  return socket(address->family, address->type | SOCK_CLOEXEC, address->protocol);
}

// Seconds, or a date.
double pause_of(const std::string& retry_after) {
  if (retry_after.empty()) return -1;
  char* end = nullptr;
  const double seconds = std::strtod(retry_after.c_str(), &end);
  if (end != retry_after.c_str()) return std::isfinite(seconds) ? std::max(0.0, seconds) : -1;
  tm date{};
  if (strptime(retry_after.c_str(), "%a, %d %b %Y %H:%M:%S", &date) == nullptr) return -1;
  return std::max(0.0, std::difftime(timegm(&date), std::time(nullptr)));
}

void perform(const ChatRequest& r, const std::string& url, const std::string& body,
             const std::function<bool()>& stop, Try* t) {
  const curl::Api& api = t->api;
  t->easy = api.easy_init();
  curl::Multi* multi = api.multi_init();
  curl::List* headers = api.slist_append(nullptr, "Content-Type: application/json");
  headers = api.slist_append(headers, "Accept: text/event-stream, application/json");
  headers = api.slist_append(headers, "Expect:");
  if (!r.key.empty())
    headers = api.slist_append(headers, fmt::format("Authorization: Bearer {}", r.key).c_str());
  t->most_bytes = r.most_bytes;
  const auto set = [&](int option, auto value) { api.easy_setopt(t->easy, option, value); };
  set(curl::kUrl, url.c_str());
  set(curl::kPost, 1L);
  set(curl::kPostFields, body.data());
  set(curl::kPostFieldSizeLarge, int64_t(body.size()));
  set(curl::kHttpHeader, headers);
  set(curl::kUserAgent, "attune");
  set(curl::kFollowLocation, 0L);
  set(curl::kVerifyPeer, 1L);
  set(curl::kVerifyHost, 2L);
  set(curl::kNoSignal, 1L);
  if (is_loopback(url)) set(curl::kNoProxy, "*");  // it would see the question, and the key
  set(curl::kProtocols, curl::kHttpAndHttps);
  set(curl::kConnectTimeoutMs, long(r.connect_seconds * 1e3));
  set(curl::kTimeoutMs, long(r.total_seconds * 1e3));
  set(curl::kErrorBuffer, &t->words[0]);
  set(curl::kWriteFunction, &on_bytes);
  set(curl::kWriteData, static_cast<void*>(t));
  set(curl::kHeaderFunction, &on_header);
  set(curl::kHeaderData, static_cast<void*>(t));
  set(curl::kOpenSocketFunction, &on_socket);
  api.multi_add_handle(multi, t->easy);
  const Clock::time_point begin = Clock::now();
  t->last = begin;
  int running = 1;
  while (running > 0 && t->cut == Try::Cut::no) {
    if (api.multi_perform(multi, &running) != curl::kOk) break;
    if (stop()) t->cut = Try::Cut::stopped;
    if (since(t->last) > r.idle_seconds) t->cut = Try::Cut::idle;
    if (since(begin) > r.total_seconds) t->cut = Try::Cut::total;
    int sockets = 0;
    if (running > 0) api.multi_wait(multi, nullptr, 0, 50, &sockets);
    if (running > 0 && sockets == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  int left = 0;
  t->result = t->cut == Try::Cut::no ? curl::kOk : curl::kTimedOut;
  while (const curl::Message* m = api.multi_info_read(multi, &left))
    if (m->kind == curl::kMessageDone) t->result = m->data.result;
  api.easy_getinfo(t->easy, curl::kResponseCode, &t->status);
  const char* redirect = nullptr;
  api.easy_getinfo(t->easy, curl::kRedirectUrl, &redirect);
  if (redirect != nullptr) t->redirect = redirect;
  api.multi_remove_handle(multi, t->easy);
  api.easy_cleanup(t->easy);
  api.multi_cleanup(multi);
  api.slist_free_all(headers);
  t->easy = nullptr;
}

// What came of a request; empty: an answer.
std::string failure_of(const ChatRequest& r, const Try& t) {
  if (t.cut == Try::Cut::stopped) return "it was stopped";
  if (t.too_large)
    return fmt::format("the answer has more than {} bytes: it was ended", r.most_bytes);
  if (t.cut == Try::Cut::idle)
    return fmt::format("the server was silent for {:g} s", r.idle_seconds);
  if (t.cut == Try::Cut::total || t.result == curl::kTimedOut)
    return fmt::format("no complete answer within {:g} s{}", r.total_seconds,
                       t.status == 0 ? fmt::format(" ({:g} s to connect)", r.connect_seconds) : "");
  if (t.result != curl::kOk) {
    std::string words = t.words[0] != 0 ? t.words : t.api.easy_strerror(t.result);
    return t.result == curl::kPartial ? "the answer was cut off: " + words : words;
  }
  if (t.status != 200) {
    const std::string said = error_in_body(t.body);
    return fmt::format("HTTP {}{}{}", t.status, said.empty() ? "" : ": ", said);
  }
  if (!t.reader.error().empty()) return t.reader.error();
  if (!t.reader.complete()) return "the answer was cut off: its stream has no end";
  if (t.reader.text().empty())
    return fmt::format("the answer has no text{}",
                       t.reader.finish_reason().empty()
                           ? ""
                           : fmt::format(" (it ended with '{}')", t.reader.finish_reason()));
  return "";
}

bool may_pass(const Try& t) {
  if (t.too_large || t.cut == Try::Cut::stopped) return false;
  if (t.result == curl::kPeerCertificate || t.result == curl::kCaFile) return false;
  if (t.cut != Try::Cut::no || t.result != curl::kOk) return true;
  if (t.status == 429 || t.status == 408 || t.status >= 500) return true;
  return t.status == 200 && t.reader.cut_off();
}

bool is_redirect(const Try& t) {
  return t.result == curl::kOk && (t.status == 301 || t.status == 302 || t.status == 303 ||
                                   t.status == 307 || t.status == 308);
}

// Newer models take some fields under other names, or not at all; they say so by name.
bool adapt(const std::string& failure, Json* body) {
  const auto speaks_of = [&](const char* word) { return failure.find(word) != failure.npos; };
  if (speaks_of("max_completion_tokens") && body->contains("max_tokens")) {
    (*body)["max_completion_tokens"] = (*body)["max_tokens"];
    body->erase("max_tokens");
    return true;
  }
  for (const char* field : {"stream_options", "temperature"})
    if (speaks_of(field) && body->contains(field)) {
      body->erase(field);
      return true;
    }
  return false;
}

}  // namespace

Status endpoint_of(const std::string& given, std::string* endpoint) {
  std::string url = given;
  for (const char c : url)
    if (uint8_t(c) <= 0x20 || c == 0x7f) return Status::invalid("there is a space in the URL");
  const Parts p = parts_of(url);
  if (p.scheme != "http" && p.scheme != "https")
    return Status::invalid(
        fmt::format("'{}' is no URL of an endpoint: http://localhost:8000/v1, for instance", url));
  if (p.host.empty()) return Status::invalid(fmt::format("'{}' names no host", url));
  if (p.host.find('@') != std::string::npos || url.find('@') < url.find('/', 8))
    return Status::invalid(
        "a URL with a user or a password would be written into the run: give the key in an "
        "environment variable");
  if (p.path.find_first_of("?#") != std::string::npos)
    return Status::invalid("a URL with '?' or '#' is not accepted: the run records the URL");
  while (url.ends_with('/')) url.pop_back();
  const std::string path = parts_of(url).path;
  if (path.empty()) url += "/v1";
  if (!path.ends_with("/chat/completions")) url += "/chat/completions";
  *endpoint = url;
  return {};
}

bool is_loopback(const std::string& url) {
  const std::string host = parts_of(url).host;
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

bool is_https(const std::string& url) { return parts_of(url).scheme == "https"; }

bool same_origin(const std::string& a, const std::string& b) {
  const Parts x = parts_of(a), y = parts_of(b);
  return x.scheme == y.scheme && x.host == y.host && x.port == y.port;
}

std::string redacted(std::string text, const std::string& key) {
  if (key.size() < kShortestSecret) return text;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at))
    text.replace(at, key.size(), "[key]");
  return text;
}

ChatReply chat(const ChatRequest& r, const std::function<bool()>& stop) {
  ChatReply reply;
  const Clock::time_point begin = Clock::now();
  const curl::Api& api = curl::api();
  const auto fail = [&](const std::string& why) {
    reply.text.clear();
    reply.error = redacted(why, r.key);
    reply.seconds = since(begin);
    return reply;
  };
  if (!api.problem.empty()) return fail(api.problem);
  Json body{{"model", r.model},
            {"messages", r.messages},
            {"temperature", r.temperature},
            {"max_tokens", r.max_tokens},
            {"stream", true},
            {"stream_options", {{"include_usage", true}}}};
  Dice dice(r.seed, r.stream);
  std::string url = r.url;
  int redirects = 0;
  for (;;) {
    Try t(api);
    ++reply.tries;
    const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    perform(r, url, text, stop, &t);
    reply.status = int(t.status);
    reply.begun += t.status == 200;
    reply.stopped = t.cut == Try::Cut::stopped;
    if (t.cut == Try::Cut::no && t.result == curl::kOk && t.status == 200) t.reader.finish();
    // A part that was paid for counts, also where it is of no use.
    reply.tokens_in = t.reader.tokens_in();
    reply.tokens_out = t.reader.tokens_out();
    reply.cost = t.reader.cost();
    if (is_redirect(t)) {
      if (t.redirect.empty() || !same_origin(url, t.redirect))
        return fail(fmt::format(
            "HTTP {}: the server sends requests on to {}, another place; give that URL if you "
            "trust it",
            t.status, t.redirect.empty() ? "nowhere" : t.redirect.substr(0, 200)));
      if (++redirects > kRedirects || reply.tries >= r.tries)
        return fail("the server sends requests on again and again");
      url = t.redirect;
      continue;
    }
    const std::string failure = failure_of(r, t);
    if (failure.empty()) {
      reply.text = redacted(t.reader.text(), r.key);
      reply.finish_reason = redacted(t.reader.finish_reason(), r.key);
      reply.seconds = since(begin);
      return reply;
    }
    if (reply.tries >= r.tries) return fail(failure);
    if (t.status == 400 && adapt(failure, &body)) continue;
    if (!may_pass(t)) return fail(failure);
    const double asked = pause_of(t.retry_after);
    if (asked > kLongestPause)
      return fail(fmt::format("{}; it asks for a pause of {:.0f} s", failure, asked));
    const double own = std::ldexp(r.retry_seconds, std::min(reply.tries - 1, 10));
    const double pause = std::min(kLongestPause, std::max(asked, own * (0.5 + dice.uniform())));
    if (r.on_retry) r.on_retry(redacted(failure, r.key), pause);
    for (const Clock::time_point from = Clock::now(); since(from) < pause;) {
      if (stop()) {
        reply.stopped = true;
        return fail("it was stopped: " + failure);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace attune::evolve
