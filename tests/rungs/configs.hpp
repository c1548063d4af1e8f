// Between the aggregates that kernels see and the configs that the library passes on.
#pragma once

#include <gtest/gtest.h>

#include "kernels/ladder/backward_config.h"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/config.h"
#include "src/rungs/ladder.hpp"
#include "src/rungs/rung.hpp"
#include "src/rungs/typed.hpp"
#include "src/rungs/wgmma.hpp"

namespace attune {

template <class C>
Config config_for(const char* rung, const C& c, Pass pass = Pass::forward) {
  return dynamic_cast<const RungOf<C>&>(*rung_named(rung, pass)).erased(c);
}
inline Config config_of(const LadderConfig& c) {
  constexpr const char* kNames[] = {"naive", "tiled", "fused"};
  return config_for(kNames[int(c.rung)], c);
}
inline Config config_of(const BackwardConfig& c) { return config_for("fused", c, Pass::backward); }
inline Config config_of(const MmaBackwardConfig& c) { return config_for("mma", c, Pass::backward); }
inline Config config_of(const MmaConfig& c) { return config_for("mma", c); }
inline Config config_of(const WgmmaChoice& c) { return config_for("wgmma", c); }
inline Config config_of(const WgmmaConfig& c) { return config_of(WgmmaChoice{c}); }

template <class C>
C typed(const Config& config) {
  const RungOf<C>* rung = typed_rung<C>(config);
  EXPECT_NE(rung, nullptr) << to_string(config);
  return rung != nullptr ? rung->typed(config) : C{};
}

// Of a genome, as its space prints it.
template <class Space, class Genome>
Config config_in(const Space& space, const Genome& genome) {
  Config config;
  EXPECT_TRUE(parse_config(space.print(genome), &config)) << space.print(genome);
  return config;
}

// The rung's own choice for a call.
template <class C>
C standard(const char* rung, const Request& r) {
  return typed<C>(rung_named(rung)->standard(r));
}

}  // namespace attune
