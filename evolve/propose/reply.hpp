// The body of an answer of a /chat/completions endpoint, as it comes: a stream of server-sent
// events (lines "data: {...}"), or one JSON value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "evolve/store/store.hpp"

namespace attune::evolve {

// The data of each event: its lines joined, without the names of fields and comments.
class EventStream {
 public:
  // Calls each(data) for each event that has become complete.
  template <class Each>
  void feed(std::string_view bytes, const Each& each) {
    for (const char c : bytes) {
      if (c == '\n' && after_return_) {
        after_return_ = false;
        continue;
      }
      after_return_ = c == '\r';
      if (c != '\n' && c != '\r') {
        line_ += c;
        continue;
      }
      if (line_.empty()) flush(each);
      take_line();
    }
  }
  // The last event may lack its blank line.
  template <class Each>
  void finish(const Each& each) {
    take_line();
    flush(each);
  }

 private:
  void take_line();
  template <class Each>
  void flush(const Each& each) {
    if (has_data_) each(data_);
    data_.clear();
    has_data_ = false;
  }

  std::string line_, data_;
  bool has_data_ = false, after_return_ = false;
};

class ReplyReader {
 public:
  void feed(std::string_view bytes);
  void finish();  // the body has ended

  const std::string& text() const { return text_; }
  // Why there is no answer: what the server said, or what is wrong with what it sent.
  const std::string& error() const { return error_; }
  bool complete() const { return complete_; }  // it said that it was done
  bool cut_off() const { return form_ == Form::events && !complete_; }
  const std::string& finish_reason() const { return finish_reason_; }
  int64_t tokens_in() const { return tokens_in_; }  // -1: it did not say
  int64_t tokens_out() const { return tokens_out_; }
  double cost() const { return cost_; }  // -1: it did not say

 private:
  enum class Form { unknown, events, json, other };
  void event(const std::string& data);
  void message(const Json& json);
  void choose_form();

  Form form_ = Form::unknown;
  EventStream events_;
  std::string head_, text_, error_, finish_reason_;
  bool complete_ = false;
  int64_t tokens_in_ = -1, tokens_out_ = -1;
  double cost_ = -1;
};

// What a server says of an error, from its JSON, or the first words of its page.
std::string error_in_body(const std::string& body);

}  // namespace attune::evolve
