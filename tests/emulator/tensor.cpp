// Tensor cores and TMA.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/emulator/block.hpp"

namespace attune::emulator {
namespace {

// All numbers of a format, by their bits.
using Numbers = std::array<float, 1 << 16>;
const Numbers& numbers(Operand operand) {
  static const auto make = [](auto value_of) {
    auto all = std::make_unique<Numbers>();
    for (uint32_t bits = 0; bits < all->size(); ++bits) (*all)[bits] = value_of(bits);
    return all;
  };
  static const std::unique_ptr<Numbers> f16 =
      make([](uint32_t bits) { return float(__builtin_bit_cast(_Float16, uint16_t(bits))); });
  static const std::unique_ptr<Numbers> bf16 =
      make([](uint32_t bits) { return __builtin_bit_cast(float, bits << 16); });
  return operand == Operand::f16 ? *f16 : *bf16;
}

// Where a lane's registers lie in a 16x16 operand A: row and first of two columns.
struct Place {
  int row, column;
};
Place place_of_a(int lane, int r) { return {lane / 4 + r % 2 * 8, lane % 4 * 2 + r / 2 * 8}; }

void gather_a(const uint32_t* of_lane, int lane, const Numbers& number, float (*a)[16]) {
  for (int r = 0; r < 4; ++r) {
    const Place p = place_of_a(lane, r);
    a[p.row][p.column] = number[of_lane[r] & 0xffff];
    a[p.row][p.column + 1] = number[of_lane[r] >> 16];
  }
}

// Lines of 128 bytes, in which pieces of 16 bytes are exchanged by the line's number; of 64, by the
// number of pairs of lines.
uint32_t swizzled(uint32_t address, int bytes) {
  if (bytes == 128) return address ^ (address >> 7 & 7) << 4;
  if (bytes == 64) return address ^ (address >> 7 & 3) << 4;
  return address;
}

struct MatrixLanes {
  uint32_t* r;
  uint32_t address;
};

}  // namespace

// ---- of a warp ----

void Gpu::Block::mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, Operand operand) {
  struct Lane {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  };
  const Lane mine{c, a, {b0, b1}};
  warp(
      &mine,
      [](const void* const* lanes, const void* context) {
        const Numbers& number = numbers(*static_cast<const Operand*>(context));
        float rows[16][16], columns[8][16];
        for (int l = 0; l < 32; ++l) {
          const Lane& lane = *static_cast<const Lane*>(lanes[l]);
          gather_a(lane.a, l, number, rows);
          for (int r = 0; r < 2; ++r)
            for (int e = 0; e < 2; ++e)
              columns[l / 4][l % 4 * 2 + r * 8 + e] = number[lane.b[r] >> 16 * e & 0xffff];
        }
        for (int l = 0; l < 32; ++l)
          for (int e = 0; e < 4; ++e) {
            const float *x = rows[l / 4 + e / 2 * 8], *y = columns[l % 4 * 2 + e % 2];
            double sum = 0;
            for (int k = 0; k < 16; ++k) sum += double(x[k]) * y[k];
            float& d = static_cast<const Lane*>(lanes[l])->c[e];
            d = float(d + sum);
          }
      },
      &operand);
}

void Gpu::Block::ldmatrix(uint32_t* r, uint32_t address, bool transposed) {
  const MatrixLanes mine{r, address};
  struct Context {
    Block* self;
    bool transposed;
  } context{this, transposed};
  warp(
      &mine,
      [](const void* const* lanes, const void* with) {
        const auto& [self, across] = *static_cast<const Context*>(with);
        uint16_t m[4][8][8];
        for (int l = 0; l < 32; ++l)
          std::memcpy(m[l / 8][l % 8],
                      self->at(static_cast<const MatrixLanes*>(lanes[l])->address, 16), 16);
        for (int l = 0; l < 32; ++l)
          for (int n = 0; n < 4; ++n) {
            const int g = l / 4, q = l % 4 * 2;
            const uint32_t low = across ? m[n][q][g] : m[n][g][q];
            const uint32_t high = across ? m[n][q + 1][g] : m[n][g][q + 1];
            static_cast<const MatrixLanes*>(lanes[l])->r[n] = low | high << 16;
          }
      },
      &context);
}

void Gpu::Block::stmatrix(uint32_t address, const uint32_t* r) {
  const MatrixLanes mine{const_cast<uint32_t*>(r), address};
  warp(
      &mine,
      [](const void* const* lanes, const void* with) {
        auto* self = static_cast<Block*>(const_cast<void*>(with));
        const auto lane = [&](int l) { return static_cast<const MatrixLanes*>(lanes[l]); };
        for (int n = 0; n < 4; ++n)
          for (int row = 0; row < 8; ++row) {
            uint32_t line[4];
            for (int q = 0; q < 4; ++q) line[q] = lane(row * 4 + q)->r[n];
            std::memcpy(self->at(lane(n * 8 + row)->address, 16), line, 16);
          }
      },
      this);
}

// ---- of a warpgroup ----

void Gpu::Block::do_product(const Product& p) {
  const WarpgroupProduct& s = p.shape;
  const Numbers& number = numbers(s.operand);
  const auto element = [&](uint64_t matrix, uint32_t offset) {
    const uint32_t address = uint32_t(matrix & 0x3fff) << 4;
    uint16_t bits;
    std::memcpy(&bits, at(swizzled(address + offset, 128), 2), 2);
    return number[bits];
  };
  float a[16][16];
  if (s.a != nullptr)
    for (int l = 0; l < 32; ++l) gather_a(p.a[l], l, number, a);
  else
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k)
        a[row][k] = element(s.a_matrix, uint32_t((p.warp * 16 + row) * 128 + k * 2));
  const auto leading = uint32_t(s.b_matrix >> 16 & 0x3fff) << 4;
  for (int n = 0; n < s.n; ++n) {
    float b[16];
    for (int k = 0; k < 16; ++k)
      b[k] = s.turned
                 ? element(s.b_matrix, uint32_t(n / 64) * leading + uint32_t(k * 128 + n % 64 * 2))
                 : element(s.b_matrix, uint32_t(n * 128 + k * 2));
    for (int row = 0; row < 16; ++row) {
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += double(a[row][k]) * b[k];
      const int lane = row % 8 * 4 + n % 8 / 2;
      float& d = p.d[lane][n / 8 * 4 + row / 8 * 2 + n % 2];
      d = float((s.add ? d : 0.f) + sum);
    }
  }
}

void Gpu::Block::wgmma(const WarpgroupProduct& product) {
  for (const uint64_t matrix : {product.a_matrix, product.b_matrix})
    if (matrix != 0 && (matrix >> 62 != 1 || (matrix >> 32 & 0x3fff) != 1024 >> 4))
      fail("a matrix of wgmma that is not swizzled in lines of 128 bytes");
  warp(
      &product,
      [](const void* const* lanes, const void* with) {
        auto* self = static_cast<Block*>(const_cast<void*>(with));
        Warp& w = self->my_warp();
        const auto lane = [&](int l) { return static_cast<const WarpgroupProduct*>(lanes[l]); };
        Product p{*lane(0), int(self->thread.x / 32 % 4), {}, {}};
        for (int l = 0; l < 32; ++l) {
          p.d[l] = lane(l)->d;
          if (p.shape.a != nullptr) std::memcpy(p.a[l], lane(l)->a, sizeof p.a[l]);
        }
        if (w.open.empty() && w.groups.empty() && self->chance(2))
          self->do_product(p);
        else
          w.open.push_back(p);
      },
      this);
}

void Gpu::Block::wgmma_commit() {
  warp(
      nullptr,
      [](const void* const*, const void* with) {
        Warp& w = static_cast<Block*>(const_cast<void*>(with))->my_warp();
        w.groups.push_back(std::move(w.open));
        w.open.clear();
      },
      this);
  maybe_pause();
}

void Gpu::Block::do_groups(Warp* w, size_t left) {
  while (w->groups.size() > left) {
    for (const Product& p : w->groups.front()) do_product(p);
    w->groups.erase(w->groups.begin());
  }
}

void Gpu::Block::wgmma_wait(int left) {
  struct Context {
    Block* self;
    int left;
  } context{this, left};
  warp(
      nullptr,
      [](const void* const*, const void* with) {
        const auto& [self, left_over] = *static_cast<const Context*>(with);
        self->do_groups(&self->my_warp(), size_t(left_over));
      },
      &context);
}

// ---- TMA ----

// A box of a tensor, row by row; outside of the tensor there are zeros, and nothing is written.
void Gpu::Block::move_box(const BulkCopy& c) {
  const TensorMapBits& m = c.map;
  const uint32_t line = m.box[0] * m.element_bytes;
  uint32_t rows = 1;
  for (int d = 1; d < m.rank; ++d) rows *= m.box[d];
  for (uint32_t row = 0; row < rows; ++row) {
    bool inside = true;
    uint32_t rest = row;
    auto* from = static_cast<uint8_t*>(m.data);
    for (int d = 1; d < m.rank; ++d) {
      const int64_t index = int64_t(c.at[d]) + rest % m.box[d];
      rest /= m.box[d];
      inside &= index >= 0 && index < m.sizes[d];
      from += index * int64_t(m.strides[d - 1]);
    }
    for (uint32_t n = 0; n < m.box[0]; ++n) {
      const int64_t column = int64_t(c.at[0]) + n;
      const bool exists = inside && column >= 0 && column < m.sizes[0];
      uint8_t* to = at(swizzled(c.shared + row * line + n * m.element_bytes, m.swizzle_bytes),
                       m.element_bytes);
      uint8_t* there = from + column * m.element_bytes;
      if (!c.store && !exists) std::memset(to, 0, m.element_bytes);
      if (!c.store && exists) std::memcpy(to, there, m.element_bytes);
      if (c.store && exists) std::memcpy(there, to, m.element_bytes);
    }
  }
}

void Gpu::Block::do_bulk(BulkCopy c) {
  if (c.boxed)
    move_box(c);
  else
    std::memcpy(at(c.shared, 16), c.from, size_t(c.bytes));
  if (c.store) return;
  Mbarrier& b = mbarrier(c.bar);
  b.bytes -= c.bytes;
  check_phase(&b);
}

// One of those under way. Faults end the launch from here as from a fiber.
void Gpu::Block::do_some_bulk() {
  const size_t n = dice_() % bulk_.size();
  const BulkCopy copy = bulk_[n];
  bulk_.erase(bulk_.begin() + std::ptrdiff_t(n));
  if (_setjmp(scheduler_) == 0) do_bulk(copy);
}

void Gpu::Block::begin_bulk(const BulkCopy& copy) {
  if (chance(4))
    do_bulk(copy);
  else
    bulk_.push_back(copy);
}

void Gpu::Block::bulk_copy(uint32_t to, const void* from, int bytes, uint32_t bar) {
  at(to, 16);
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    fail("a bulk copy that is not in pieces of 16 bytes");
  at(to + uint32_t(bytes) - 16, 16);
  begin_bulk({.shared = to, .bar = bar, .from = from, .bytes = bytes});
}

namespace {

BulkCopy box_of(const void* map, uint32_t shared, const int* at, int rank) {
  BulkCopy c{.shared = shared, .boxed = true, .map = *static_cast<const TensorMapBits*>(map)};
  std::copy_n(at, rank, c.at);
  c.bytes = c.map.element_bytes;
  for (int d = 0; d < rank; ++d) c.bytes *= int(c.map.box[d]);
  return c;
}

}  // namespace

void Gpu::Block::tensor_load(uint32_t to, const void* map, uint32_t bar, const int* where,
                             int rank) {
  at(to, 128);
  if (static_cast<const TensorMapBits*>(map)->rank != rank) fail("a tensor map of another rank");
  BulkCopy copy = box_of(map, to, where, rank);
  copy.bar = bar;
  begin_bulk(copy);
}

void Gpu::Block::tensor_store(const void* map, uint32_t from, const int* where, int rank) {
  at(from, 128);
  if (static_cast<const TensorMapBits*>(map)->rank != rank) fail("a tensor map of another rank");
  BulkCopy copy = box_of(map, from, where, rank);
  copy.store = true;
  copy.owner = current_;
  begin_bulk(copy);
}

void Gpu::Block::bulk_wait() {
  for (size_t n = 0; n < bulk_.size();) {
    if (!bulk_[n].store || bulk_[n].owner != current_) {
      ++n;
      continue;
    }
    const BulkCopy copy = bulk_[n];
    bulk_.erase(bulk_.begin() + std::ptrdiff_t(n));
    do_bulk(copy);
  }
}

}  // namespace attune::emulator
