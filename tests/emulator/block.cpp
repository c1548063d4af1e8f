#include "tests/emulator/block.hpp"

#include <algorithm>
#include <cstring>

namespace attune::emulator {
namespace {

constexpr size_t kStack = 256 << 10;
constexpr size_t kAlign = 1024;
constexpr size_t kBehind = 1024;   // bytes after shared memory that nobody may write
constexpr uint8_t kPoison = 0xff;  // as fp16, bf16 and fp32: NaN
thread_local std::function<void()>* t_fiber = nullptr;

}  // namespace

Gpu::Gpu(unsigned seed) : block_(std::make_unique<Block>(seed)) {}
Gpu::~Gpu() = default;
std::string Gpu::run(const Launch& launch) { return block_->run(launch); }

// ---- fibers ----

void Gpu::Block::begin_fiber() {
  const std::function<void()> body = *t_fiber;
  body();
}

void Gpu::Block::start_fiber(unsigned number) {
  if (number >= fibers_.size()) fibers_.push_back(std::make_unique<Fiber>());
  Fiber& fiber = *fibers_[number];
  if (!fiber.stack) fiber.stack = std::make_unique_for_overwrite<char[]>(kStack);
  fiber.index = {number, 0, 0};
  fiber.ended = false;
  fiber.waits_for = nullptr;
  fiber.pauses_until = 0;
  fiber.waits_at = kNowhere;
  fiber.open.clear();
  fiber.groups.clear();
}

// Goes on with a fiber until it hands over.
__attribute__((noinline)) void Gpu::Block::resume(Fiber* fiber) {
  current_ = fiber;
  thread = fiber->index;
  if (_setjmp(scheduler_) != 0) return;
  if (fiber->started) _longjmp(fiber->place, 1);
  fiber->started = true;
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = fiber->stack.get();
  fiber->start.uc_stack.ss_size = kStack;
  fiber->start.uc_link = nullptr;
  // It serves one block after the other.
  std::function<void()> body = [this] {
    for (;;) {
      launch_->kernel();
      end_of_thread();
    }
  };
  t_fiber = &body;
  makecontext(&fiber->start, begin_fiber, 0);
  setcontext(&fiber->start);
}

__attribute__((noinline)) void Gpu::Block::hand_over() {
  if (_setjmp(current_->place) == 0) _longjmp(scheduler_, 1);
}

void Gpu::Block::wait_for(const Turn& turn, const char* why) {
  current_->waits_for = &turn;
  current_->seen = turn;
  current_->why = why;
  hand_over();
}

// Now and then others go on for a while, as if this thread's warp had not been issued.
void Gpu::Block::maybe_pause() {
  if (!chance(4)) return;
  current_->pauses_until = tick_ + 1 + dice_() % 16;
  last_pause_ = std::max(last_pause_, current_->pauses_until);
  hand_over();
}

void Gpu::Block::end_of_thread() {
  current_->ended = true;
  current_->waits_for = nullptr;
  --alive_;
  for (Barrier& b : barriers_)
    if (b.all && b.arrived > 0) check_barrier(&b, 0);
  hand_over();
}

// The launch ends here; the fibers are left as they are.
void Gpu::Block::fail(const std::string& why) {
  fault_ =
      "thread " + std::to_string(thread.x) + " of block " + std::to_string(block.x) + ": " + why;
  for (auto& fiber : fibers_) fiber->started = false;
  _longjmp(scheduler_, 1);
}

void Gpu::Block::deadlock() {
  fault_ = "block " + std::to_string(block.x) + ": threads wait for others that never come:";
  for (const auto& fiber : fibers_) {
    if (fiber->ended || fiber->index.x >= threads.x) continue;
    const std::string one =
        " warp " + std::to_string(fiber->index.x / 32) + " at " + fiber->why + ";";
    if (fault_.find(one) == std::string::npos) fault_ += one;
  }
  for (auto& fiber : fibers_) fiber->started = false;
}

// Warps in an order, and the lanes of each one after the other: no other warp comes between lanes
// that a GPU would run together.
void Gpu::Block::draw_order() {
  std::shuffle(order_.begin(), order_.end(), dice_);
  std::vector<uint64_t> place(warps_.size());
  for (uint64_t& p : place) p = dice_();
  std::stable_sort(order_.begin(), order_.end(),
                   [&](unsigned a, unsigned b) { return place[a / 32] < place[b / 32]; });
}

// Every thread that can go on does, up to where it waits. warp ~0: of any warp. False: none could.
bool Gpu::Block::run_round(unsigned warp_number) {
  bool moved = false;
  for (const unsigned t : order_) {
    if (warp_number != ~0u && t / 32 != warp_number) continue;
    Fiber& fiber = *fibers_[t];
    if (fiber.ended || fiber.pauses_until > tick_) continue;
    if (fiber.waits_for != nullptr && *fiber.waits_for == fiber.seen) continue;
    fiber.waits_for = nullptr;
    fiber.polls = false;
    resume(&fiber);
    moved |= !fiber.polls;
    if (fault_.empty() && !bulk_.empty() && chance(8)) do_some_bulk();
    if (!fault_.empty()) return false;
  }
  return moved;
}

// The first warp of the order that can go on.
bool Gpu::Block::run_one_warp() {
  for (const unsigned t : order_) {
    bool moved = false;
    while (run_round(t / 32)) moved = true;
    if (moved || !fault_.empty()) return moved;
  }
  return false;
}

void Gpu::Block::run_block(unsigned number) {
  block = {number % launch_->blocks, number / launch_->blocks, 0};
  std::memset(shared, kPoison, launch_->shared_bytes + kBehind);
  for (Barrier& b : barriers_) b = {};
  mbarriers_.clear();
  bulk_.clear();
  warps_.assign(threads.x / 32 + 1, {});
  alive_ = threads.x;
  tick_ = last_pause_ = 0;
  order_.resize(threads.x);
  for (unsigned t = 0; t < threads.x; ++t) {
    start_fiber(t);
    order_[t] = t;
  }
  // Warps keep step with each other, or one runs as far as it can while the others stand still.
  const bool greedy = chance(2);
  while (alive_ > 0 && fault_.empty()) {
    draw_order();
    const bool moved = greedy ? run_one_warp() : run_round(~0u);
    if (!fault_.empty()) return;
    const bool paused = last_pause_ > tick_++;
    if (moved || paused) continue;
    if (bulk_.empty()) return deadlock();
    do_some_bulk();
  }
  while (!bulk_.empty() && fault_.empty()) do_some_bulk();
  const uint8_t* behind = shared + launch_->shared_bytes;
  if (std::any_of(behind, behind + kBehind, [](uint8_t x) { return x != kPoison; }))
    fault_ = "block " + std::to_string(number) + " wrote past the end of shared memory";
}

std::string Gpu::Block::run(const Launch& launch) {
  launch_ = &launch;
  fault_.clear();
  if (launch.threads == 0 || launch.threads > 1024 || launch.threads % 32 != 0)
    return "a block of " + std::to_string(launch.threads) + " threads";
  memory_ = std::make_unique_for_overwrite<uint8_t[]>(launch.shared_bytes + kAlign + kBehind);
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  shared = memory_.get() + (kAlign - address % kAlign) % kAlign;
  threads = {launch.threads, 1, 1};
  blocks = {launch.blocks, launch.rows, 1};
  launch.bind(this);
  std::vector<unsigned> numbers(size_t(launch.blocks) * launch.rows);
  for (unsigned n = 0; n < numbers.size(); ++n) numbers[n] = n;
  std::shuffle(numbers.begin(), numbers.end(), dice_);
  for (const unsigned n : numbers) {
    run_block(n);
    if (!fault_.empty()) break;
  }
  return fault_;
}

// ---- meetings ----

void Gpu::Block::check_barrier(Barrier* b, int count) {
  if (b->arrived < (count == 0 ? int(alive_) : count)) return;
  b->said = b->any;
  b->any = false;
  b->arrived = 0;
  ++b->turn;
}

void Gpu::Block::barrier(int id, int count, bool wait) {
  if (id < 0 || id > 15) fail("no such barrier: " + std::to_string(id));
  Barrier& b = barriers_[id];
  b.all = count == 0;
  ++b.arrived;
  const Turn turn = b.turn;
  check_barrier(&b, count);
  if (!wait) return maybe_pause();
  if (b.turn == turn) return wait_for(b.turn, "a barrier of the block");
  hand_over();  // the last one goes on with the others, not ahead of its warp
}

bool Gpu::Block::barrier_or(bool mine) {
  barriers_[0].any |= mine;
  barrier(0, 0, true);
  return barriers_[0].said;
}

void Gpu::Block::warp(const void* mine, void (*work)(const void* const*, const void*),
                      const void* context) {
  Warp& w = my_warp();
  if (w.arrived > 0 && w.work != work)
    fail("lanes of a warp meet at instructions that are not the same");
  w.work = work;
  w.lanes[thread.x % 32] = mine;
  if (++w.arrived < 32) return wait_for(w.turn, "an instruction of the whole warp");
  w.arrived = 0;
  work(w.lanes, context);
  ++w.turn;
  hand_over();  // as the other lanes did
}

// ---- shared memory and copies into it ----

uint8_t* Gpu::Block::at(uint32_t address, int bytes) {
  if (address % uint32_t(bytes) != 0)
    fail("the shared address " + std::to_string(address) + " is not aligned to " +
         std::to_string(bytes));
  if (uint64_t(address) + uint64_t(bytes) > launch_->shared_bytes)
    fail("the shared address " + std::to_string(address) + " is past the end");
  return shared + address;
}

void Gpu::Block::do_copy(const Copy& c) {
  uint8_t* to = at(c.to, c.size);
  if (c.bytes > 0) std::memcpy(to, c.from, size_t(c.bytes));
  std::memset(to + c.bytes, 0, size_t(c.size - c.bytes));
}

void Gpu::Block::cp_async(uint32_t to, const void* from, int bytes, int size) {
  if (bytes < 0 || bytes > size) fail("a copy of " + std::to_string(bytes) + " bytes");
  if (reinterpret_cast<uintptr_t>(from) % uintptr_t(size) != 0)
    fail("a copy from an address that is not aligned to " + std::to_string(size));
  const Copy copy{to, from, bytes, size};
  if (chance(2))
    do_copy(copy);
  else
    current_->open.push_back(copy);
}

void Gpu::Block::cp_async_commit() {
  current_->groups.push_back(std::move(current_->open));
  current_->open.clear();
  maybe_pause();
}

void Gpu::Block::cp_async_wait(int left) {
  auto& groups = current_->groups;
  while (groups.size() > size_t(left)) {
    for (const Copy& copy : groups.front()) do_copy(copy);
    groups.erase(groups.begin());
  }
}

// ---- mbarriers ----

Mbarrier& Gpu::Block::mbarrier(uint32_t address) {
  const auto found = mbarriers_.find(address);
  if (found == mbarriers_.end()) fail("no mbarrier at " + std::to_string(address));
  return found->second;
}

void Gpu::Block::mbarrier_init(uint32_t address, int count) {
  at(address, 8);
  if (count < 1) fail("an mbarrier of " + std::to_string(count) + " arrivals");
  mbarriers_[address] = {count, count, 0, 0};
}

void Gpu::Block::check_phase(Mbarrier* b) {
  if (b->pending != 0 || b->bytes != 0) return;
  b->pending = b->count;
  ++b->phase;
}

void Gpu::Block::mbarrier_arrive(uint32_t address, int bytes) {
  Mbarrier& b = mbarrier(address);
  if (b.pending == 0) fail("more arrive at an mbarrier than it waits for");
  b.bytes += bytes;
  --b.pending;
  check_phase(&b);
  maybe_pause();
}

bool Gpu::Block::mbarrier_ended(uint32_t address, uint32_t parity) {
  return (mbarrier(address).phase & 1) != parity;
}

// Whether the thread may still come to where its warp's other lanes are.
bool Gpu::Block::may_come(const Fiber& f) const {
  const bool blocked = f.waits_for != nullptr && *f.waits_for == f.seen;
  return !f.ended && !blocked && f.waits_at == kNowhere;
}

// Lanes that come to the wait together go on together, as in a warp that has not parted: else one
// could see a phase, and another only the phase after it.
void Gpu::Block::mbarrier_wait(uint32_t address, uint32_t parity) {
  Mbarrier& b = mbarrier(address);
  const Turn begun = b.phase;
  const uint64_t place = uint64_t{address} << 1 | parity;
  current_->waits_at = place;
  const unsigned first = thread.x / 32 * 32;
  while (current_->waits_at == place) {
    if ((begun & 1) == parity && b.phase == begun) {
      wait_for(b.phase, "an mbarrier");
      continue;
    }
    bool all = true;
    for (unsigned t = first; t < first + 32; ++t)
      all &= fibers_[t]->waits_at == place || !may_come(*fibers_[t]);
    if (!all) {
      current_->polls = true;
      hand_over();
      continue;
    }
    for (unsigned t = first; t < first + 32; ++t)
      if (fibers_[t]->waits_at == place) fibers_[t]->waits_at = kNowhere;
  }
}

}  // namespace attune::emulator
