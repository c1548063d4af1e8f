#include "evolve/compile/ahead.hpp"

#include <utility>

namespace attune::evolve {

CompileAhead::CompileAhead(int at_once, Build build) : build_(std::move(build)), free_(at_once) {}

CompileAhead::~CompileAhead() { settle(); }

void CompileAhead::begin(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (begun_.contains(text)) return;
  begun_[text] = std::async(std::launch::async, [this, text] { return build(text); }).share();
}

Built CompileAhead::take(const std::string& text) {
  std::shared_future<Built> begun;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = begun_.find(text); at != begun_.end()) {
      begun = std::move(at->second);
      begun_.erase(at);
    }
  }
  return begun.valid() ? begun.get() : build(text);
}

void CompileAhead::settle() {
  settling_ = true;
  const std::lock_guard lock(mutex_);
  for (auto& [text, begun] : begun_) begun.wait();
  std::erase_if(begun_, [](const auto& b) { return b.second.get().verdict != Verdict::ok; });
  settling_ = false;
}

// The semaphore is what bounds the number of compilers; a thread that waits for it costs little.
Built CompileAhead::build(const std::string& text) {
  struct Place {
    explicit Place(std::counting_semaphore<>* places) : places_(places) { places_->acquire(); }
    ~Place() { places_->release(); }
    std::counting_semaphore<>* places_;
  } const place(&free_);
  if (settling_) return failed({}, Verdict::compile_timeout, "the compilation was stopped");
  return build_(text, [this] { return settling_.load(); });
}

}  // namespace attune::evolve
