// Outcomes are values inside the library: a code and a message. Only the C++ façade throws.
#pragma once

#include <attune/attune.h>

#include <string>
#include <utility>

namespace attune {

struct [[nodiscard]] Status {
  attune_status code = ATTUNE_OK;
  std::string message;

  bool ok() const { return code == ATTUNE_OK; }
  static Status invalid(std::string message) {
    return {ATTUNE_INVALID_ARGUMENT, std::move(message)};
  }
  static Status unsupported(std::string message) {
    return {ATTUNE_UNSUPPORTED, std::move(message)};
  }
};

}  // namespace attune
