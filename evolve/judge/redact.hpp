// Secrets in what an evaluator says: out, before anything is stored, shown or sent to a model.
#pragma once

#include <string>

namespace attune::evolve {

// "[redacted]" in place of what looks like a key (sk-..., ghp_..., AKIA..., Bearer ... and others),
// and "[NAME]" in place of the value of an environment variable whose name ends in _KEY, _TOKEN,
// _SECRET or PASSWORD, where it has 8 letters or more. A secret in another encoding is not found.
std::string redacted(std::string text);

}  // namespace attune::evolve
