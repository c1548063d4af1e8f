// Calls of the C ABI, and what must hold of every one: explain and forward agree; a refused call
// has a reason and wrote nothing; an accepted one wrote its outputs, all of them and nothing else,
// and no accepted output overlaps itself or another operand; results are those of the oracle.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "evolve/worker/process.hpp"
#include "tests/fuzz/call.hpp"
#include "tests/fuzz/oracle.hpp"

namespace attune::fuzz {
namespace {

constexpr int64_t kWork = 400'000;  // multiplications of a valid call
constexpr double kSlowSeconds = 10;

// Of the result's dtype: half the distance to its neighbour, relative and near 0.
struct Rounding {
  double relative, absolute;
};
Rounding rounding_of(int32_t dtype) {
  switch (dtype) {
    case ATTUNE_F16:
      return {0x1p-11, 0x1p-25};
    case ATTUNE_BF16:
      return {0x1p-8, 1e-40};
    default:
      return {0x1p-23, 1e-44};
  }
}

// The bytes of a tensor's elements, by address.
std::vector<uintptr_t> bytes_of(const attune_tensor& t) {
  std::vector<uintptr_t> bytes;
  for (int64_t at : offsets_of(t))
    for (int k = 0; k < element_bytes(t.dtype); ++k)
      bytes.push_back(reinterpret_cast<uintptr_t>(t.data) +
                      uintptr_t(at * element_bytes(t.dtype) + k));
  return bytes;
}

bool overlap(const attune_tensor& a, const attune_tensor& b) {
  const std::vector<uintptr_t> first = bytes_of(a);
  const std::unordered_set<uintptr_t> set(first.begin(), first.end());
  for (uintptr_t byte : bytes_of(b))
    if (set.count(byte) != 0) return true;
  return false;
}

// A struct of another size lives in a block of that size.
class SizedArgs {
 public:
  SizedArgs(Dice& dice, const Case& c) : args_(&c.args) {
    const size_t size = c.args.struct_size;
    if (!c.sized || size > 70'000) return;
    const size_t bytes = std::max<size_t>(size, sizeof(size));
    block_ = static_cast<uint8_t*>(std::calloc(bytes, 1));
    if (block_ == nullptr) throw std::bad_alloc();
    std::memcpy(block_, &c.args, std::min(bytes, sizeof(c.args)));
    if (bytes > sizeof(c.args) && dice.chance(0.3f))  // a field that this version does not know
      block_[dice.range(int64_t(sizeof(c.args)), int64_t(bytes) - 1)] = 1;
    args_ = reinterpret_cast<const attune_args*>(block_);
  }
  SizedArgs(const SizedArgs&) = delete;
  SizedArgs& operator=(const SizedArgs&) = delete;
  ~SizedArgs() { std::free(block_); }
  const attune_args* get() const { return args_; }

 private:
  uint8_t* block_ = nullptr;
  const attune_args* args_;
};

void set_tensors(Case* c) {
  attune_args& a = c->args;
  attune_tensor* const forward[] = {&a.q,
                                    &a.k,
                                    &a.v,
                                    &a.out,
                                    &a.lse,
                                    &a.mask,
                                    &a.block_mask,
                                    &a.alibi_slopes,
                                    &a.sinks,
                                    &a.cu_seqlens_q,
                                    &a.cu_seqlens_k,
                                    &a.key_lengths};
  for (size_t i = 0; i < std::size(forward); ++i) *forward[i] = c->x[i].t;
  attune_backward_args& g = c->grads;
  attune_tensor* const backward[] = {&g.dout, &g.dlse, &g.dq, &g.dk, &g.dv, &g.dmask, &g.dsinks};
  for (size_t i = 0; i < std::size(backward); ++i) *backward[i] = c->x[kDOut + i].t;
}

// A struct_size within a field leaves a part of it: what the tensor then covers is not what was
// placed, and a hook is no function.
void look_for_cut_fields(Case* c) {
  attune_args seen{};
  std::memcpy(&seen, &c->args, std::min(c->args.struct_size, sizeof(seen)));
  const auto is_cut = [](const auto& whole, const auto& part) {
    const std::remove_cvref_t<decltype(whole)> nothing{};
    return std::memcmp(&whole, &part, sizeof(whole)) != 0 &&
           std::memcmp(&nothing, &part, sizeof(whole)) != 0;
  };
  const attune_args& a = c->args;
  c->cut = is_cut(a.q, seen.q) || is_cut(a.k, seen.k) || is_cut(a.v, seen.v) ||
           is_cut(a.out, seen.out) || is_cut(a.lse, seen.lse) || is_cut(a.mask, seen.mask) ||
           is_cut(a.block_mask, seen.block_mask) || is_cut(a.alibi_slopes, seen.alibi_slopes) ||
           is_cut(a.sinks, seen.sinks) || is_cut(a.cu_seqlens_q, seen.cu_seqlens_q) ||
           is_cut(a.cu_seqlens_k, seen.cu_seqlens_k) || is_cut(a.key_lengths, seen.key_lengths) ||
           is_cut(a.parallel_for, seen.parallel_for) || is_cut(a.parallel_user, seen.parallel_user);
}

// explain reads the lengths where they are given: those that are not there get no pointer.
void hide_missing_lengths(Case* c) {
  for (Name name : {kCuQ, kCuK, kKeyLengths})
    if (c->x[name].given && !c->x[name].honest) c->x[name].t.data = nullptr;
}

std::string describe(const Case& c) {
  const attune_args& a = c.args;
  const auto shape = [](const attune_tensor& t) {
    std::string text;
    for (int d = 0; d < std::clamp(t.rank, 0, 4); ++d)
      text += fmt::format("{}{}", d == 0 ? "" : "x", t.shape[d]);
    return text;
  };
  std::string text = fmt::format(
      "{}{} q {} k {} v {} dtype {} mode {} threads {} causal {} align {} window {},{} "
      "scale {} softcap {} dropout {}",
      c.backward ? "backward" : "forward", c.wild ? ", with NaN and Inf," : "", shape(a.q),
      shape(a.k), shape(a.v), a.q.dtype, a.mode, a.threads, a.causal, a.alignment, a.window_left,
      a.window_right, a.scale, a.softcap, a.dropout_p);
  for (Name name : {kLse, kMask, kBlockMask, kAlibi, kSinks, kCuQ, kKeyLengths})
    if (c.x[name].given)
      text += fmt::format(" {} {} ({})", name_of(name), shape(c.x[name].t), c.x[name].t.dtype);
  return c.notes.empty() ? text : text + " | " + c.notes;
}

class Check {
 public:
  Check(Dice& dice, const Memory& memory, Case* c, Outcome* outcome)
      : dice_(dice), memory_(memory), c_(*c), outcome_(*outcome), args_(dice, *c) {
    c_.grads.forward = args_.get();
  }

  void run() {
    if (dice_.chance(0.02f)) info();
    // The lengths are read at once.
    if (c_.cut && (c_.x[kCuQ].given || c_.x[kCuK].given || c_.x[kKeyLengths].given)) return;
    // A backward call may leave out away; the forward questions then make no sense.
    const bool forward = !c_.backward || c_.x[kOut].given;
    const int status = forward ? explain() : ATTUNE_OK;
    if (forward) workspace(status);
    if (c_.backward) backward_workspace();
    outcome_.answer = status;
    if (forward && !c_.hostile && status != ATTUNE_OK)
      fail("a valid call was refused: {}", attune_last_error());
    if (c_.args.device == ATTUNE_CUDA && !(c_.sized && c_.args.struct_size < 16)) return cuda();
    if (status != ATTUNE_OK) refused_forward(status);
    if (c_.backward)
      backward(status);
    else if (status == ATTUNE_OK)
      accepted_forward();
  }

 private:
  template <class... Parts>
  void fail(fmt::format_string<Parts...> text, Parts&&... parts) {
    outcome_.fail(fmt::format(text, std::forward<Parts>(parts)...));
  }

  void check_status(const char* function, int status) {
    if (status == ATTUNE_OK) return;
    if (attune_last_error()[0] == '\0') fail("{}: status {} without a reason", function, status);
    if (status < 0 || status == ATTUNE_OUT_OF_MEMORY || status == ATTUNE_INTERNAL ||
        status > ATTUNE_CUDA_ERROR)
      fail("{}: status {}: {}", function, status, attune_last_error());
  }

  // fn(text, capacity, needed) fills a buffer that ends where memory ends.
  template <class Fn>
  int text_call(const char* function, const Fn& fn) {
    const size_t capacity = dice_.pick<size_t>({0, 1, 2, 100, 1 << 14, kBlockBytes});
    char* text = reinterpret_cast<char*>(memory_.text_end() - capacity);
    size_t needed = 0;
    outcome_.call(function);
    const int status = fn(text, capacity, &needed);
    check_status(function, status);
    if (status != ATTUNE_OK) return status;
    if (needed < 2 || needed > 1'000'000) fail("{}: needed is {}", function, needed);
    if (capacity > 0 && strnlen(text, capacity) != std::min(needed, capacity) - 1)
      fail("{}: {} bytes of text for a capacity of {}, needed is {}", function,
           strnlen(text, capacity), capacity, needed);
    return status;
  }

  void info() {
    const int status = text_call("attune_info", attune_info);
    if (status != ATTUNE_OK) fail("attune_info: {}", attune_last_error());
  }

  int explain() {
    return text_call("attune_explain", [&](char* text, size_t capacity, size_t* needed) {
      return attune_explain(args_.get(), text, capacity, needed);
    });
  }

  void workspace(int explained) {
    size_t bytes = 777;
    outcome_.call("attune_workspace_size");
    const int status = attune_workspace_size(args_.get(), &bytes);
    check_status("attune_workspace_size", status);
    if (status != ATTUNE_OK && bytes != 777)
      fail("attune_workspace_size failed and wrote {}", bytes);
    if (explained == ATTUNE_OK && c_.args.device == ATTUNE_CPU &&
        (status != ATTUNE_OK || bytes != 0))
      fail("attune_workspace_size: status {}, {} bytes on the CPU", status, bytes);
  }

  void backward_workspace() {
    size_t bytes = 777;
    outcome_.call("attune_backward_workspace_size");
    const int status = attune_backward_workspace_size(&c_.grads, &bytes);
    check_status("attune_backward_workspace_size", status);
    if (status != ATTUNE_OK ? bytes != 777 : c_.args.device == ATTUNE_CPU && bytes != 0)
      fail("attune_backward_workspace_size: status {}, {} bytes", status, bytes);
  }

  // By a plan, on the memory that it was made with or on the same memory given again.
  int planned_forward() {
    outcome_.call("attune_plan_create");
    attune_plan* plan = nullptr;
    int status = attune_plan_create(args_.get(), SIZE_MAX, &plan);
    check_status("attune_plan_create", status);
    if ((status == ATTUNE_OK) != (plan != nullptr))
      fail("attune_plan_create: status {} and a plan at {}", status, fmt::ptr(plan));
    if (status == ATTUNE_OK) {
      outcome_.call("attune_plan_run");
      status = attune_plan_run(plan, dice_.chance(0.5f) ? args_.get() : nullptr, nullptr, 0);
      check_status("attune_plan_run", status);
    }
    attune_plan_destroy(plan);
    return status;
  }

  int forward() {
    const bool plain = c_.args.device == ATTUNE_CPU && !c_.sized && c_.args.workspace == nullptr &&
                       c_.args.workspace_bytes == 0;
    if (plain && dice_.chance(0.3f)) return planned_forward();
    outcome_.call("attune_forward");
    const int status = attune_forward(args_.get());
    check_status("attune_forward", status);
    return status;
  }

  // Without memory behind its tensors a call is only made when it will be refused.
  void refused_forward(int status) {
    const std::string why = attune_last_error();
    const int again = forward();
    if (again != status)
      fail("attune_explain: status {} ({}), attune_forward: status {}", status, why, again);
    unchanged("refused attune_forward", true);
  }

  void cuda() {  // there may be no device, and this memory is none of its own
    outcome_.call("attune_prepare");
    check_status("attune_prepare", attune_prepare(args_.get()));
    if (c_.honest()) forward();
    unchanged("attune_forward for CUDA", true);
  }

  // Accepted shapes may be huge where nothing has to be computed, or through strides of 0.
  bool is_small() const {
    const attune_args& a = c_.args;
    if (!extent_of(a.q).elements) return true;
    const int seq = a.q.rank == 4 ? 2 : 0, dim = a.q.rank - 1;
    Wide work = std::max<int64_t>(a.k.shape[seq], 1);
    work = work * (a.q.shape[dim] + a.v.shape[dim]);
    for (int d = 0; d < dim && work <= kWork * 64; ++d) work *= a.q.shape[d];
    return work <= kWork * 8;
  }

  void accepted_forward() {
    if (!c_.honest() || !is_small()) return;
    for (Name out : {kOut, kLse})
      if (!(c_.sized && out == kLse)) check_overlaps(out, kLastOfForward);
    const int status = forward();
    if (status != ATTUNE_OK)
      return fail("attune_explain accepted it, attune_forward: status {}: {}", status,
                  attune_last_error());
    ++outcome_.accepted;
    unchanged("attune_forward", false);
    check_written({kOut, kLse});
    // A struct that was cut short has lost fields that the oracle would look at.
    if (extent_of(c_.args.q).elements && !c_.aliased() && !c_.sized && is_moderate())
      compare(expected_forward(c_));
  }

  void backward(int explained) {
    if (!c_.honest()) return;
    if (explained == ATTUNE_OK && !is_plausible()) return;
    const bool results = c_.x[kOut].given && c_.x[kLse].given;
    const bool filled = results && explained == ATTUNE_OK && fill_results();
    outcome_.call("attune_backward");
    const int status = attune_backward(&c_.grads);
    check_status("attune_backward", status);
    outcome_.answer = outcome_.answer * 8 + status;
    if (status != ATTUNE_OK) {
      if (!c_.hostile) fail("a valid attune_backward was refused: {}", attune_last_error());
      return unchanged("refused attune_backward", true);
    }
    ++outcome_.accepted;
    for (Name out : {kDQ, kDK, kDV, kDMask, kDSinks}) check_overlaps(out, kNames - 1);
    unchanged("attune_backward", false);
    check_written({kDQ, kDK, kDV, kDMask, kDSinks});
    if (!c_.aliased() && !c_.sized && !c_.wild && is_moderate() && is_small() &&
        extent_of(c_.args.q).elements && (filled || !results))
      compare(expected_backward(c_));
  }

  // The forward pass's results, which a backward pass may read; before, out and lse hold noise.
  bool fill_results() {
    if (c_.aliased() || c_.sized || !is_small()) return false;
    outcome_.call("attune_forward");
    if (attune_forward(args_.get()) != ATTUNE_OK) return false;
    for (Name name : {kOut, kLse}) {
      Operand& x = c_.x[name];
      if (!x.before.empty()) x.before.assign(x.base, x.base + x.bytes);
    }
    return true;
  }

  // Ranks that is_small can look at: without out, nothing has been checked yet.
  bool is_plausible() const {
    const attune_args& a = c_.args;
    if (a.q.rank < 3 || a.q.rank > 4 || a.k.rank != a.q.rank || a.v.rank != a.q.rank) return true;
    return is_small();
  }

  // Scalars at the edge of float32 have edges of their own: the oracle's limits are not for them.
  bool is_moderate() const {
    const auto moderate = [](float x) { return x == 0 || (x > 1e-6f && x < 1e6f); };
    return moderate(c_.args.scale) && moderate(c_.args.softcap);
  }

  void unchanged(const char* when, bool outputs_too) {
    for (size_t name = 0; name < kNames; ++name) {
      const Operand& x = c_.x[name];
      if (x.before.empty() || (!outputs_too && (x.written || c_.aliased()))) continue;
      if (std::memcmp(x.before.data(), x.base, x.bytes) != 0)
        fail("{}: {} was changed", when, name_of(int(name)));
    }
  }

  void check_overlaps(Name out, int last) {
    const Operand& y = c_.x[out];
    for (int name = 0; name <= last; ++name) {
      const Operand& x = c_.x[size_t(name)];
      if (name != out && x.given && y.given && (x.fixed || y.fixed) && overlap(x.t, y.t))
        fail("accepted, but {} overlaps the output {}", name_of(name), name_of(out));
    }
  }

  // No output overlaps itself, and nothing between its elements was written.
  void check_written(std::initializer_list<Name> outputs) {
    if (c_.aliased()) return;
    for (Name name : outputs) {
      const Operand& x = c_.x[name];
      if (!x.given || x.before.empty() || (name == kLse && c_.sized)) continue;
      std::vector<bool> element(x.bytes);
      for (uintptr_t address : bytes_of(x.t)) {
        const size_t at = address - reinterpret_cast<uintptr_t>(x.base);
        if (element[at]) return fail("accepted, but {} overlaps itself", name_of(name));
        element[at] = true;
      }
      for (size_t at = 0; at < x.bytes; ++at)
        if (!element[at] && x.base[at] != Memory::kUnwritten)
          return fail("memory between the elements of {} was written", name_of(name));
    }
  }

  void compare(const std::vector<ExpectedElement>& elements) {
    ++outcome_.compared;
    for (const ExpectedElement& e : elements) {
      const attune_tensor& t = c_.x[size_t(e.name)].t;
      const double got = get_element(t, e.at), want = e.expected.value;
      const Rounding r = rounding_of(t.dtype);
      const double limit = e.expected.limit + r.relative * std::abs(want) + r.absolute;
      outcome_.add_value(got, std::isnan(limit) ? 0 : limit);
      if (std::isinf(e.expected.limit)) continue;
      if (!agrees(got, want, limit, t.dtype))
        return fail("{} at {}: {:.9g}, expected {:.9g}, limit {:.3g}", name_of(e.name), e.at, got,
                    want, limit);
    }
  }

  static bool agrees(double got, double want, double limit, int32_t dtype) {
    if (std::isnan(want)) return std::isnan(got);
    // A weight that vanishes in float32 and not in float64, times Inf.
    if (std::isinf(want)) return got == want || std::isnan(got);
    const double largest = dtype == ATTUNE_F16 ? 65500 : 3.38e38;
    if (std::abs(want) > largest && std::isinf(got)) return true;
    return std::abs(got - want) <= limit;
  }

  Dice& dice_;
  const Memory& memory_;
  Case& c_;
  Outcome& outcome_;
  const SizedArgs args_;
};

class CAbi : public Target {
 public:
  void run(uint64_t seed, Outcome* outcome) override {
    Dice dice(seed);
    Case c;
    make_call(dice, kWork, &c);
    if (dice.chance(0.5f))
      for (int64_t n = dice.chance(0.75f) ? 1 : dice.range(2, 4); n > 0; --n) mutate_call(dice, &c);
    memory_.place(dice, &c);
    hide_missing_lengths(&c);
    set_tensors(&c);
    look_for_cut_fields(&c);
    outcome->note(describe(c));
    const double start = evolve::monotonic_seconds();
    Check(dice, memory_, &c, outcome).run();
    const double seconds = evolve::monotonic_seconds() - start;
    if (seconds > kSlowSeconds) outcome->fail(fmt::format("the calls took {:.1f} s", seconds));
    memory_.release();
  }

 private:
  Memory memory_;
};

}  // namespace

std::unique_ptr<Target> make_c_abi(const std::string&) { return std::make_unique<CAbi>(); }

}  // namespace attune::fuzz
