// --config: a config.yaml of OpenEvolve.
#pragma once

#include "cli/evolve_options.hpp"
#include "cli/model_settings.hpp"

namespace attune::cli {

// Takes what the file says into the options that were not given, and names on stderr, in one
// message, every key that means nothing here or is not known. Throws UsageError with the line.
void apply_config(EvolveOptions* o);

}  // namespace attune::cli
