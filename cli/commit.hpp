// Which commit this tool was built from.
#pragma once

#include <string>

namespace attune::cli {

// "4a1c...", with "-dirty" where files were changed. Empty: the sources came without history.
std::string build_commit();

}  // namespace attune::cli
