#include "evolve/judge/device_limits.hpp"

namespace attune::evolve {

double tensor_flops_a_cycle(int cc) {
  switch (cc) {
    case 75:
    case 86:
    case 87:
    case 89:
      return 1024;
    case 80:
    case 120:
    case 121:
      return 2048;
    case 90:
      return 4096;
    default:
      return 8192;
  }
}

double fma_flops_a_cycle(int cc) { return cc == 75 || cc == 80 ? 128 : 256; }

}  // namespace attune::evolve
