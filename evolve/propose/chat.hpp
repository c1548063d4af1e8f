// One question to an OpenAI-compatible endpoint, with all that may go wrong on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "evolve/store/store.hpp"

namespace attune::evolve {

struct ChatRequest {
  std::string url;  // of /chat/completions itself
  std::string key;  // may be empty
  std::string model;
  Json messages;
  double temperature = 0.7;
  int64_t max_tokens = 8192;  // of the answer
  double connect_seconds = 10, idle_seconds = 120, total_seconds = 300;
  size_t most_bytes = 4 << 20;    // of the answer
  int tries = 4;                  // at most, the first counted
  double retry_seconds = 1;       // before the second; doubled each time
  uint64_t seed = 0, stream = 0;  // of the jitter
  // Of a try that failed and is repeated after a pause of so many seconds.
  std::function<void(const std::string& why, double pause)> on_retry = {};
};

struct ChatReply {
  std::string text, error;  // one of them is empty
  std::string finish_reason;
  int status = 0, tries = 0;
  int begun = 0;                            // answers that began: each is paid for
  int64_t tokens_in = -1, tokens_out = -1;  // -1: not said
  double cost = -1;                         // USD as the server says it; -1: not said
  double seconds = 0;
  bool stopped = false;
};

// Whether the URL can be used, and the endpoint that it means: with or without /v1. Refuses other
// schemes, and what would be recorded and should not be: a password or a query in it.
Status endpoint_of(const std::string& url, std::string* endpoint);
bool is_loopback(const std::string& url);
bool is_https(const std::string& url);
// Of the same scheme, host and port: only there is a redirect followed, and the key sent.
bool same_origin(const std::string& a, const std::string& b);

// Every occurrence of the key replaced.
std::string redacted(std::string text, const std::string& key);

// Waits for the answer, or until stop() says so.
ChatReply chat(const ChatRequest& request, const std::function<bool()>& stop);

}  // namespace attune::evolve
