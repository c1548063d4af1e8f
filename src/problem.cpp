#include "src/problem.hpp"

#include <algorithm>
#include <charconv>

namespace attune {
namespace {

constexpr const char* kFalseTrue[] = {"false", "true"};
constexpr const char* kTypes[] = {
    "", "DType::f32", "DType::f16", "DType::bf16", "DType::boolean", "DType::i32"};
constexpr const char* kPasses[] = {"Pass::forward", "Pass::backward"};
constexpr const char* kMasks[] = {"MaskKind::none", "MaskKind::boolean", "MaskKind::f32",
                                  "MaskKind::f16", "MaskKind::bf16"};
constexpr const char* kAlignments[] = {"", "Alignment::top_left", "Alignment::bottom_right"};

template <auto kMember>
constexpr ProblemField field(const char* name, bool in_key, const char* const* labels = nullptr,
                             const char* tag = "") {
  return {name,
          in_key,
          [](const Problem& p) { return int64_t(p.*kMember); },
          [](Problem* p, int64_t value) {
            using Type = std::remove_reference_t<decltype(p->*kMember)>;
            p->*kMember = Type(value);
          },
          tag,
          labels};
}
template <auto kMember>
constexpr ProblemField flag(const char* name, bool in_key, const char* tag) {
  return field<kMember>(name, in_key, kFalseTrue, tag);
}

constexpr ProblemField kFields[] = {
    field<&Problem::pass>("pass", true, kPasses),
    field<&Problem::dtype>("dtype", true, kTypes),
    field<&Problem::batch>("batch", false),
    field<&Problem::heads_q>("heads_q", false),
    field<&Problem::heads_kv>("heads_kv", false),
    field<&Problem::seq_q>("seq_q", false),
    field<&Problem::seq_k>("seq_k", false),
    field<&Problem::dim>("dim", true),
    field<&Problem::dim_v>("dim_v", true),
    flag<&Problem::causal>("causal", true, "causal"),
    field<&Problem::alignment>("alignment", false, kAlignments),
    field<&Problem::window_left>("window_left", false),
    field<&Problem::window_right>("window_right", false),
    field<&Problem::mask>("mask", true, kMasks),
    field<&Problem::block_mask_q>("block_mask_q", false),
    field<&Problem::block_mask_k>("block_mask_k", false),
    flag<&Problem::softcap>("softcap", true, "softcap"),
    flag<&Problem::alibi>("alibi", true, "alibi"),
    flag<&Problem::sinks>("sinks", true, "sinks"),
    flag<&Problem::ragged>("ragged", true, "ragged"),
    flag<&Problem::dropout>("dropout", true, "dropout"),
    flag<&Problem::lse>("lse", true, "lse"),
    flag<&Problem::batch_invariant>("batch_invariant", false, ""),
    flag<&Problem::strict_fp32>("strict_fp32", false, ""),
    flag<&Problem::score_mod>("score_mod", true, "scoremod"),
    flag<&Problem::mask_mod>("mask_mod", true, "maskmod"),
    flag<&Problem::key_lengths>("key_lengths", true, "lengths"),
};

// A field that is missing above would make two different kernels one: a problem that grows without
// a line there does not compile.
constexpr void list_is_complete(const Problem& problem) {
  [[maybe_unused]] const auto& [p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14,
                                p15, p16, p17, p18, p19, p20, p21, p22, p23, p24, p25, p26] =
      problem;
  static_assert(std::size(kFields) == 27);
}

const char* pass_tag(Pass pass) { return pass == Pass::forward ? ".attn_fwd." : ".attn_bwd."; }

const char* dtype_tag(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    default:
      return "f32";
  }
}

}  // namespace

std::span<const ProblemField> problem_fields() { return kFields; }

Problem kernel_key(const Problem& p) {
  Problem key;
  for (const ProblemField& f : kFields)
    if (f.in_key) f.set(&key, f.get(p));
  if (p.window()) key.window_left = key.window_right = 0;
  if (p.block_mask_q != 0) key.block_mask_q = key.block_mask_k = 1;
  return key;
}

// In the order of the table: the window, the mask and the block mask have their own words.
std::string problem_id(const Problem& p, const std::string& machine) {
  std::string id = machine + pass_tag(p.pass) + dtype_tag(p.dtype) + ".d" + std::to_string(p.dim);
  if (p.dim_v != p.dim) id += ".dv" + std::to_string(p.dim_v);
  // The key of a kernel has no heads: one kernel serves them all.
  if (p.heads_kv != 0 && p.group() != 1) id += ".gqa" + std::to_string(p.group());
  for (const ProblemField& f : kFields) {
    const std::string_view name = f.name;
    if (*f.tag != '\0' && f.get(p) != 0) id += std::string(".") + f.tag;
    if (name == "window_right" && p.window()) id += ".window";
    if (name == "mask" && p.mask == MaskKind::boolean) id += ".mask";
    if (name == "mask" && p.mask > MaskKind::boolean) id += ".bias";
    if (name == "block_mask_k" && p.block_mask_q != 0) id += ".blockmask";
  }
  return id;
}

bool parse_problem_id(std::string_view id, Problem* problem) {
  Problem p;
  p.batch = p.heads_q = p.heads_kv = 1;
  const auto number = [](std::string_view part, size_t tag, auto* value) {
    std::from_chars(part.data() + tag, part.data() + part.size(), *value);
  };
  std::string_view rest = id;
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    return part;
  };
  const std::string machine(next());
  while (!rest.empty()) {
    const std::string_view part = next();
    if (part == "attn_bwd") p.pass = Pass::backward;
    for (const DType dtype : {DType::f16, DType::bf16})
      if (part == dtype_tag(dtype)) p.dtype = dtype;
    const auto* flag = std::find_if(std::begin(kFields), std::end(kFields),
                                    [&](const auto& f) { return *f.tag != '\0' && part == f.tag; });
    if (flag != std::end(kFields))
      flag->set(&p, 1);
    else if (part == "window")
      p.window_left = 0;
    else if (part == "mask")
      p.mask = MaskKind::boolean;
    else if (part == "bias")
      p.mask = MaskKind::f32;
    else if (part == "blockmask")
      p.block_mask_q = p.block_mask_k = 1;
    else if (part.starts_with("dv"))
      number(part, 2, &p.dim_v);
    else if (part.starts_with("gqa"))
      number(part, 3, &p.heads_q);
    else if (part.starts_with("d"))
      number(part, 1, &p.dim);
  }
  if (p.dim_v == 0) p.dim_v = p.dim;
  if (p.heads_q < 1 || problem_id(p, machine) != id) return false;  // something else is in it
  *problem = p;
  return true;
}

}  // namespace attune
