// Features of a case as the caller's own code, to judge that code by the reference's features.
#pragma once

#include <attune/attune.h>

#include <string>

#include "src/check/data.hpp"

namespace attune::check {

struct UserCode {
  std::string score_mod, mask_mod;
};

// Takes from `args` what the code computes in its place. The numbers of the case stand in the text;
// what is a tensor is read through UserWord.
UserCode as_user_code(const Data& data, attune_args* args);

}  // namespace attune::check
