#include "evolve/compile/contract.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "evolve/compile/compiler_text.hpp"
#include "evolve/worker/program_call.hpp"

namespace attune::evolve {
namespace {

constexpr std::string_view kCandidate = "attune_candidate", kRunAttention = "run_attention",
                           kBackward = "attune_candidate_backward";

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// ---- The text as tokens ----

struct Token {
  std::string_view text;   // a name, a number, or one character
  bool directive = false;  // in a line that begins with #
};

// Without comments and without the contents of strings and characters. A newline that follows a
// backslash does not end a line.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) {
    while (at_ < text_.size()) next();
  }
  std::vector<Token> take() { return std::move(tokens_); }

 private:
  char ahead(size_t by) const { return at_ + by < text_.size() ? text_[at_ + by] : '\0'; }

  void next() {
    const char c = text_[at_];
    if (c == '\\' && (ahead(1) == '\n' || (ahead(1) == '\r' && ahead(2) == '\n'))) {
      at_ += ahead(1) == '\n' ? 2 : 3;
    } else if (c == '\n') {
      directive_ = false;
      line_begins_ = true;
      ++at_;
    } else if (c == '/' && ahead(1) == '/') {
      skip_line();
    } else if (c == '/' && ahead(1) == '*') {
      const size_t end = text_.find("*/", at_ + 2);
      at_ = end == text_.npos ? text_.size() : end + 2;
    } else if (c == '"' || c == '\'') {
      skip_quoted(c);
    } else if (is_digit(c)) {
      number();
    } else if (is_name(c)) {
      name();
    } else {
      if (c == '#' && line_begins_) directive_ = true;
      if (std::isspace(static_cast<unsigned char>(c)) == 0)
        add(1);
      else
        ++at_;
    }
  }

  void add(size_t length) {
    tokens_.push_back({text_.substr(at_, length), directive_});
    at_ += length;
    line_begins_ = false;
  }

  void skip_line() {
    while (at_ < text_.size() && text_[at_] != '\n') at_ += text_[at_] == '\\' ? 2 : 1;
  }

  void skip_quoted(char quote) {
    line_begins_ = false;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\n') return;  // not closed: the compiler will say so
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }

  // 1'000 has no character in it.
  void number() {
    size_t end = at_;
    while (end < text_.size() &&
           (is_name(text_[end]) || text_[end] == '.' ||
            (text_[end] == '\'' && end + 1 < text_.size() && is_name(text_[end + 1]))))
      ++end;
    add(end - at_);
  }

  void name() {
    size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    const bool raw = word == "R" || word == "u8R" || word == "uR" || word == "UR" || word == "LR";
    if (raw && end < text_.size() && text_[end] == '"') {
      skip_raw(end);
    } else {
      add(end - at_);
    }
  }

  void skip_raw(size_t quote) {
    line_begins_ = false;
    const size_t open = text_.find('(', quote);
    if (open == text_.npos) {
      at_ = text_.size();
      return;
    }
    const std::string close = fmt::format("){}\"", text_.substr(quote + 1, open - quote - 1));
    const size_t end = text_.find(close, open);
    at_ = end == text_.npos ? text_.size() : end + close.size();
  }

  std::string_view text_;
  size_t at_ = 0;
  bool directive_ = false, line_begins_ = true;
  std::vector<Token> tokens_;
};

// ---- What they define ----

// Behind the bracket that closes the one at `at`.
size_t behind_group(const std::vector<Token>& tokens, size_t at) {
  int depth = 0;
  for (; at < tokens.size(); ++at) {
    const std::string_view t = tokens[at].text;
    if (t == "(" || t == "[") ++depth;
    if ((t == ")" || t == "]") && --depth == 0) return at + 1;
  }
  return at;
}

// A name with its arguments and a body: noexcept and attributes may stand before the body.
bool defines(const std::vector<Token>& tokens, std::string_view name) {
  for (size_t n = 0; n + 1 < tokens.size(); ++n) {
    if (tokens[n].text != name || tokens[n].directive || tokens[n + 1].text != "(") continue;
    if (n > 0 && (tokens[n - 1].text == ":" || tokens[n - 1].text == ".")) continue;  // a member
    size_t at = behind_group(tokens, n + 1);
    while (at < tokens.size()) {
      if (tokens[at].text == "(" || tokens[at].text == "[")
        at = behind_group(tokens, at);
      else if (is_name(tokens[at].text[0]) && !tokens[at].directive)
        ++at;
      else
        break;
    }
    if (at < tokens.size() && tokens[at].text == "{") return true;
  }
  return false;
}

// ---- Adapters ----

constexpr const char* kCppSignature =
    "extern \"C\" void run_attention(const float* Q, const float* K, const float* V, float* O, "
    "int batch, int heads, int seq_len, int head_dim, bool causal)";
constexpr const char* kCudaSignature =
    "extern \"C\" void run_attention(const half* Q, const half* K, const half* V, half* O, "
    "int batch, int heads, int seq_len, int head_dim, bool causal, cudaStream_t stream)";

// {0}: headers, {1}: the type of numbers, {2}: its number in candidate.h, {3}: a type for the
// stream, {4}: the stream, {5}: what is returned, {6}: the signature as text
constexpr const char* kAdapter =
    R"(// Made by Attune: candidate.h by way of run_attention, which the program defines.
{0}#include <type_traits>
#include "candidate.h"
static_assert(
    std::is_convertible_v<decltype(&run_attention),
                          void (*)(const {1}*, const {1}*, const {1}*, {1}*, int, int, int, int,
                                   bool{3})>,
    "run_attention has other arguments than its contract: {6}");
int attune_candidate(const attune_candidate_call* call) {{
  if (call->dtype != {2} || call->heads_q != call->heads_kv || call->seq_q != call->seq_k ||
      call->dim != call->dim_v || call->lse != nullptr)
    return 1;
  run_attention(static_cast<const {1}*>(call->q), static_cast<const {1}*>(call->k),
                static_cast<const {1}*>(call->v), static_cast<{1}*>(call->out),
                static_cast<int>(call->batch), static_cast<int>(call->heads_q),
                static_cast<int>(call->seq_q), static_cast<int>(call->dim), call->causal != 0{4});
  return {5};
}}
)";

std::string quoted(std::string_view text) {
  std::string all;
  for (const char c : text) {
    if (c == '"') all += '\\';
    all += c;
  }
  return all;
}

}  // namespace

const char* contract_name(Contract contract) {
  return contract == Contract::candidate       ? "attune_candidate"
         : contract == Contract::run_attention ? "run_attention"
         : contract == Contract::backward      ? "attune_candidate_backward"
                                               : "none";
}

Contract contract_of(std::string_view source) {
  const Contract forward = contract_of(source, Pass::forward);
  return forward != Contract::none ? forward : contract_of(source, Pass::backward);
}

Contract contract_of(std::string_view source, Pass pass) {
  const std::vector<Token> tokens = Tokens(source).take();
  const auto names = [&](std::string_view name) {
    return std::any_of(tokens.begin(), tokens.end(), [&](auto& t) { return t.text == name; });
  };
  if (pass == Pass::backward) return names(kBackward) ? Contract::backward : Contract::none;
  if (defines(tokens, kCandidate)) return Contract::candidate;
  if (defines(tokens, kRunAttention)) return Contract::run_attention;
  return names(kCandidate) ? Contract::candidate : Contract::none;
}

std::string adapter_text(Language language) {
  const std::string signature = quoted(language == Language::cuda ? kCudaSignature : kCppSignature);
  if (language == Language::cuda)
    return fmt::format(fmt::runtime(kAdapter),
                       "#include <cuda_fp16.h>\n#include <cuda_runtime.h>\n", "half", 2,
                       ", cudaStream_t", ", static_cast<cudaStream_t>(call->stream)",
                       "cudaGetLastError() == cudaSuccess ? 0 : 1", signature);
  return fmt::format(fmt::runtime(kAdapter), "", "float", 1, "", "", "0", signature);
}

std::string with_adapter(const std::string& source, Contract contract) {
  if (contract != Contract::run_attention) return source;
  return fmt::format("{}\n\n#include \"{}\"\n", source, kAdapterFile);
}

std::string no_entry_text(Language language) {
  return fmt::format(
      "it defines no entry point: a program defines {}, or int attune_candidate(const "
      "attune_candidate_call*) of candidate.h{}",
      language == Language::cuda ? kCudaSignature : kCppSignature,
      language == Language::cuda ? "" : ", or attune_candidate_backward of it");
}

const char* beyond_run_attention(const Problem& p, Language language) {
  if (const char* beyond = beyond_contract(p); beyond != nullptr) return beyond;
  if (p.dtype != (language == Language::cuda ? DType::f16 : DType::f32)) return "another dtype";
  if (p.heads_q != p.heads_kv) return "two numbers of heads";
  if (p.seq_q != p.seq_k) return "two lengths";
  if (p.dim != p.dim_v) return "two head dimensions";
  if (p.lse) return "the log-sum-exp";
  return nullptr;
}

}  // namespace attune::evolve
