#include "evolve/propose/reply.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attune::evolve {
namespace {

constexpr size_t kSaid = 300;  // letters of what a server said

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// One line, without control characters.
std::string plain(std::string_view text) {
  std::string line;
  for (const char c : trimmed(text)) line += uint8_t(c) < 0x20 || c == 0x7f ? ' ' : c;
  return line.size() > kSaid ? line.substr(0, kSaid) + "..." : line;
}

bool is_page(std::string_view body) {
  std::string start(trimmed(body).substr(0, 15));
  for (char& c : start) c = char(std::tolower(uint8_t(c)));
  return start.starts_with("<!doctype") || start.starts_with("<html") || start.starts_with("<");
}

std::string error_of(const Json& json) {
  if (!json.is_object() || !json.contains("error") || json["error"].is_null()) return "";
  const Json& e = json["error"];
  if (e.is_string()) return plain(e.get<std::string>());
  if (e.is_object() && e.contains("message") && e["message"].is_string())
    return plain(e["message"].get<std::string>());
  return "an error without words";
}

// A string, or the texts of a list of parts.
std::string content_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (content.is_array())
    for (const Json& part : content)
      if (part.is_object() && part.contains("text") && part["text"].is_string())
        text += part["text"].get<std::string>();
  return text;
}

void read_count(const Json& usage, const char* name, int64_t* count) {
  if (const auto at = usage.find(name); at != usage.end() && at->is_number_integer())
    *count = std::clamp<int64_t>(at->get<int64_t>(), 0, int64_t{1} << 40);
}

}  // namespace

void EventStream::take_line() {
  std::string line = std::exchange(line_, "");
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) return;  // a comment, or another field
  line.erase(0, kData.size());
  if (line.starts_with(' ')) line.erase(0, 1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

void ReplyReader::choose_form() {
  const std::string_view start = trimmed(head_);
  if (start.empty()) return;
  if (start[0] == '{' || start[0] == '[') form_ = Form::json;
  for (const std::string_view field : {":", "data:", "event:", "id:", "retry:"})
    if (form_ == Form::unknown && start.starts_with(field)) form_ = Form::events;
  constexpr size_t kLongestField = 6;
  if (form_ == Form::unknown && start.size() >= kLongestField) form_ = Form::other;
}

void ReplyReader::feed(std::string_view bytes) {
  if (form_ == Form::events) {
    events_.feed(bytes, [&](const std::string& data) { event(data); });
    return;
  }
  head_ += bytes;
  if (form_ != Form::unknown) return;
  choose_form();
  if (form_ == Form::events)
    events_.feed(std::exchange(head_, ""), [&](const std::string& data) { event(data); });
}

void ReplyReader::finish() {
  if (form_ == Form::events) {
    events_.finish([&](const std::string& data) { event(data); });
    if (text_.empty() && error_.empty() && !complete_)
      error_ = "the answer is empty, or was cut off";
    return;
  }
  if (trimmed(head_).empty()) {
    error_ = "the answer is empty";
    return;
  }
  if (form_ == Form::json) {
    try {
      message(parse_json(head_));
      complete_ = error_.empty();
      return;
    } catch (const Json::exception&) {
    }
  }
  error_ = is_page(head_)
               ? "a page of HTML came instead of JSON: is the URL that of the API?"
               : fmt::format("what came is no JSON: \"{}\"", plain(head_.substr(0, 100)));
}

void ReplyReader::event(const std::string& data) {
  if (!error_.empty()) return;
  if (trimmed(data) == "[DONE]") {
    complete_ = true;
    return;
  }
  try {
    message(parse_json(data));
  } catch (const Json::exception&) {
    error_ = fmt::format("an event of the stream is no JSON: \"{}\"", plain(data.substr(0, 100)));
  }
}

void ReplyReader::message(const Json& json) {
  if (error_ = error_of(json); !error_.empty()) return;
  if (!json.is_object()) {
    error_ = "the answer is JSON, but no object";
    return;
  }
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    read_count(*usage, "prompt_tokens", &tokens_in_);
    read_count(*usage, "completion_tokens", &tokens_out_);
    if (const auto at = usage->find("cost"); at != usage->end() && at->is_number())
      cost_ = std::max(0.0, at->get<double>());
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array()) {
    if (form_ == Form::json) error_ = "the answer has no \"choices\"";
    return;
  }
  if (choices->empty()) return;  // usage alone
  const Json& choice = (*choices)[0];
  if (!choice.is_object()) {
    error_ = "the answer's choice is no object";
    return;
  }
  for (const char* name : {"delta", "message"})
    if (choice.contains(name) && choice[name].is_object() && choice[name].contains("content"))
      text_ += content_of(choice[name]["content"]);
  if (const auto at = choice.find("finish_reason"); at != choice.end() && at->is_string()) {
    at->get_to(finish_reason_);
    complete_ = true;
  }
}

std::string error_in_body(const std::string& body) {
  if (is_page(body)) return "a page of HTML";
  try {
    if (std::string said = error_of(parse_json(body)); !said.empty()) return said;
  } catch (const Json::exception&) {
  }
  return plain(body);
}

}  // namespace attune::evolve
