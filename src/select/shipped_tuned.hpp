// The tuned rows that ship: src/select/shipped.json, as the build has made constants of it.
#pragma once

#include <cstddef>

#include "src/select/tuned.hpp"

namespace attune {

struct ShippedRow {
  const char* key;
  struct {
    const char *arch, *device;
    int threads;
  } machine;
  TunedSizes sizes;
  const char* config;
  const char* provenance;  // JSON
};
extern const ShippedRow kShippedRows[];
extern const size_t kShippedRowCount;

}  // namespace attune
