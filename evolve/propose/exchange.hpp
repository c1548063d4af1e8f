// A question to a proposer outside of the search (a language model, a person), and what came back.
// The store has three events of it: the exchange, when it ended; then either that it was refused,
// or, in the transaction of its result, which proposal it became and which texts the space learned.
// A run is resumed and replayed from these, without the proposer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "evolve/genome/program_space.hpp"
#include "evolve/store/store.hpp"

namespace attune::evolve {

inline constexpr const char* kExchange = "exchange";
inline constexpr const char* kRefused = "refused";
inline constexpr const char* kLearned = "learned";

struct Exchange {
  int64_t k = -1;        // its number in the run
  std::string op;        // "model", "manual"
  std::string who;       // the model, the file
  int64_t parent = 0;    // the proposal whose program was shown
  int64_t repairs = -1;  // an earlier exchange, whose answer could not be applied
  Json messages;         // the question, as it was sent; null where nothing was sent
  std::string answer;    // empty where there is an error
  std::string error;     // why no answer came
  int64_t tokens_in = 0, tokens_out = 0;
  bool estimated = false;     // the server did not say how many tokens
  double cost = -1;           // USD; below 0: unknown
  int status = 0, tries = 0;  // HTTP's last, and how often it was asked
  double seconds = 0, at = 0;
};

struct Refusal {
  std::string verdict, why;  // "not_applied", "cheated", "duplicate"
};

struct Learned {
  int64_t n = -1, k = -1;  // the proposal, and the exchange that it comes from
  NewTexts news;
  std::string form;  // "edits", "blocks", "program"
};

Json to_json(const Exchange& exchange);
Json to_json(const Learned& learned);
Exchange exchange_of(const Json& json);  // these throw Json::exception
Learned learned_of(const Json& json);

struct Exchanges {
  std::vector<Exchange> all;           // in order of k
  std::map<int64_t, Learned> used;     // by the number of the proposal
  std::map<int64_t, Refusal> refused;  // by k

  const Exchange* of(int64_t k) const {
    return k >= 0 && k < int64_t(all.size()) ? &all[size_t(k)] : nullptr;
  }
};
Status read_exchanges(const Store& store, Exchanges* exchanges);

// What an answer makes of its parent: a genome, and the texts that are new in it.
struct Derived {
  NewTexts news;
  Genome genome;
  std::string form;
  Refusal refusal;  // its verdict is empty: there is none
};
Derived derive(const GrowingSpace& space, const Exchange& exchange, const Genome& parent,
               const std::string& label);

// The space of a recorded run with all that it learned.
Status learn_all(const Store& store, Space* space);

}  // namespace attune::evolve
