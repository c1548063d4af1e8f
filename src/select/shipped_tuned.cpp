#include "src/select/shipped_tuned.hpp"

#include <span>

namespace attune {

TunedRows shipped_tuned() {
  TunedRows table;
  for (const ShippedRow& shipped : std::span(kShippedRows, kShippedRowCount)) {
    TunedRow& row = table.rows.emplace_back();
    row.key = shipped.key;
    row.machine = {shipped.machine.arch, shipped.machine.device, shipped.machine.threads};
    row.sizes = shipped.sizes;
    row.config = shipped.config;
    row.provenance = shipped.provenance;
    complete(&row);
  }
  return table;
}

}  // namespace attune
