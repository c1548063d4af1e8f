// Between a Config and the aggregate that a rung's kernels see.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "src/rungs/rung.hpp"

namespace attune {

// How a field of the table is read from the aggregate and written to it.
template <class C>
struct Member {
  int (*get)(const C&);
  void (*set)(C*, int);
};
template <auto kMember, class C>
constexpr Member<C> member() {
  return {[](const C& c) { return int(c.*kMember); },
          [](C* c, int value) {
            using Type = std::remove_reference_t<decltype(c->*kMember)>;
            c->*kMember = Type(value);
          }};
}

// A table of N fields: what the host knows of them, and where they are.
template <class C, size_t N>
struct Table {
  static_assert(N <= Config::kMostFields);
  std::array<Field, N> fields;
  std::array<Member<C>, N> members;
};
template <class C>
struct Row {
  Field field;
  Member<C> member;
};
template <class C, size_t N>
constexpr Table<C, N> table(const Row<C> (&rows)[N]) {
  Table<C, N> t{};
  for (size_t i = 0; i < N; ++i) {
    t.fields[i] = rows[i].field;
    t.members[i] = rows[i].member;
    t.fields[i].standard = rows[i].member.get(C{});
  }
  return t;
}

inline constexpr const char* kFalseTrue[] = {"false", "true"};
inline constexpr int kFlagValues[] = {0, 1};

template <class C, auto kMember>
constexpr Row<C> number(const char* name, const char* tag, Search search = {}) {
  return {{.name = name, .tag = tag, .search = search}, member<kMember, C>()};
}
// Of an enum, with the names of its values.
template <class C, auto kMember>
constexpr Row<C> choice(const char* name, const char* tag, std::span<const char* const> labels,
                        Search search) {
  return {{.name = name, .tag = tag, .labels = labels, .search = search}, member<kMember, C>()};
}
template <class C, auto kMember>
constexpr Row<C> flag(const char* name, const char* tag, const char* group, Level level,
                      bool sketch, const char* meaning) {
  return choice<C, kMember>(name, tag, kFalseTrue, {kFlagValues, group, level, sketch, meaning});
}
// Nobody chooses it: it follows from the rung, or from how the call's tensors lie.
template <class C, auto kMember>
constexpr Row<C> settled(const char* name, int standard = 0,
                         std::span<const char* const> labels = {}) {
  return {{.name = name, .tag = "", .standard = standard, .labels = labels}, member<kMember, C>()};
}
// The plan reads it, and no kernel does.
template <class C>
constexpr Row<C> of_plan(Row<C> row) {
  row.field.compiled = false;
  return row;
}
// Printed only where it differs from its default, so that what was written before there was such a
// field still reads.
template <class C>
constexpr Row<C> optional(Row<C> row) {
  row.field.optional = true;
  return row;
}

// Fields of an aggregate: each must be in its table, or two different kernels would be one.
struct Anything {
  template <class T>
  constexpr operator T() const;
};
template <class C, class... Given>
constexpr size_t member_count() {
  if constexpr (requires { C{Given{}..., Anything{}}; })
    return member_count<C, Given..., Anything>();
  else
    return sizeof...(Given);
}

// A rung whose kernels take a C: what is asked of a Config is asked of the aggregate.
template <class C>
class RungOf : public Rung {
 public:
  virtual std::span<const Member<C>> members() const = 0;
  virtual C typed_standard(const Request& r) const = 0;
  // Sets what the call decides: how tiles are copied follows from how its tensors lie, and what has
  // no effect on it is at its default.
  virtual void settle(const Request& r, C* c) const {
    (void)r;
    (void)c;
  }
  virtual std::string typed_cannot_run(const Request& r, const C& c) const = 0;
  virtual std::string typed_misfit(const Request& r, const C& c) const = 0;
  virtual Plan typed_plan(const Request& r, const C& c) const = 0;
  virtual Unit typed_unit(const Problem& key, const C& c) const = 0;
  virtual bool typed_same(const Request&, const C& a, const C& b) const { return a == b; }
  virtual int typed_warps(const C& c, int64_t smem, const Arch& arch) const = 0;

  C typed(const Config& config) const {
    C c{};
    for (size_t i = 0; i < members().size(); ++i) members()[i].set(&c, config.values[i]);
    return c;
  }
  Config erased(const C& c) const {
    Config config{this, {}};
    for (size_t i = 0; i < members().size(); ++i) config.values[i] = members()[i].get(c);
    return config;
  }

  C settled_for(const Request& r, const Config& config) const {
    C c = typed(config);
    settle(r, &c);
    return c;
  }

  Config standard(const Request& r) const final { return erased(typed_standard(r)); }
  // Of tensors that lie as well as the problem allows.
  std::string invalid(const Config& c, const Problem& p, const Arch& arch) const final {
    return invalid_reason(settled_for({p, arch, layout_of(p, {}), 0, "", ""}, c), p, arch);
  }
  std::string cannot_run(const Request& r, const Config& config) const final {
    const C c = settled_for(r, config);
    std::string reason = invalid_reason(c, r.problem, r.arch);
    return reason.empty() ? typed_cannot_run(r, c) : reason;
  }
  std::string misfit(const Request& r, const Config& c) const final {
    return typed_misfit(r, settled_for(r, c));
  }
  Plan plan(const Request& r, const Config& c) const final {
    return typed_plan(r, settled_for(r, c));
  }
  bool same(const Request& r, const Config& a, const Config& b) const final {
    return typed_same(r, settled_for(r, a), settled_for(r, b));
  }
  Unit unit(const Problem& key, const Config& c) const final { return typed_unit(key, typed(c)); }
  int smem(const Config& c, const Problem& p) const final { return smem_bytes(typed(c), p); }
  int warps(const Config& c, int64_t smem_of_block, const Arch& arch) const final {
    return typed_warps(typed(c), smem_of_block, arch);
  }

 protected:
  using Rung::Rung;
  ~RungOf() = default;
};

// The aggregate of a config; null rung, or one of other kernels: an empty one.
template <class C>
const RungOf<C>* typed_rung(const Config& config) {
  return dynamic_cast<const RungOf<C>*>(config.rung);
}

// ---- what rungs share ----

Plan plan_of_unit(const Request& r, const Config& config);  // with an id and one unit, no launches
std::string too_long(const Problem& p);
std::string too_many_blocks(int64_t blocks);
std::string needs_capability(const Request& r, int cc);  // empty: the device has it

}  // namespace attune
