// Damage to files: what the targets that test readers share.
#pragma once

#include <string>

#include "tests/fuzz/target.hpp"

namespace attune::fuzz {

// One to eight changes of any kind: bits, bytes, runs that are cut out, repeated or overwritten.
void damage_bytes(Dice& dice, std::string* bytes);

// JSON of a given depth, with or without its end.
std::string deep_json(Dice& dice, int64_t depth);
// A JSON value that is probably not what the reader expects.
std::string odd_json(Dice& dice);

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

// Something that is no regular file in the place of one: FIFO, folder, link to nowhere, link to
// /dev/zero. Says which.
std::string make_odd_file(Dice& dice, const std::string& path);

}  // namespace attune::fuzz
