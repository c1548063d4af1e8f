#include "src/jit/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "src/problem.hpp"
#include "src/rungs/rung.hpp"

namespace attune::jit {
namespace {

// ---- one translation unit ----

std::string value_text(const char* const* labels, int64_t value) {
  return labels != nullptr ? labels[value] : std::to_string(value);
}

// "constexpr MmaConfig kConfig{...};", with what differs from the defaults.
std::string constant(const char* type, const char* name, const std::string& fields) {
  return fmt::format("constexpr {} {}{{{}{}}};\n", type, name, fields.empty() ? "" : "\n", fields);
}
std::string constant(const Problem& key) {
  std::string text;
  for (const ProblemField& f : problem_fields())
    if (f.get(key) != f.get(Problem{}))
      text += fmt::format("    .{} = {},\n", f.name, value_text(f.labels, f.get(key)));
  return constant("Problem", "kProblem", text);
}
std::string constant(const Config& config) {
  std::string text;
  for (size_t i = 0; i < config.rung->fields.size(); ++i) {
    const Field& f = config.rung->fields[i];
    if (f.compiled && (*f.tag == '\0' || config.values[i] != f.standard))
      text +=
          fmt::format("    .{} = {},\n", f.name,
                      value_text(f.labels.empty() ? nullptr : f.labels.data(), config.values[i]));
  }
  return constant(config.rung->type, "kConfig", text);
}

// The caller's text as a function. Compiler messages count its lines from 1, under its own name.
std::string user_function(const char* macro, const char* signature, const char* name,
                          const std::string& body) {
  if (body.empty()) return "";
  return fmt::format(
      "#define {}\n"
      "namespace attune {{\n"
      "__device__ inline {} {{\n"
      "#line 1 \"{}\"\n"
      "{}\n"
      "}}\n"
      "}}  // namespace attune\n\n",
      macro, signature, name, body);
}

// The line after `text`, told to the compiler, which lost count in the caller's part.
std::string line_directive(const std::string& text) {
  return fmt::format("#line {} \"{}\"\n", std::count(text.begin(), text.end(), '\n') + 2,
                     kUnitName);
}

std::string kernel(const Entry& entry, Pass pass) {
  return fmt::format(
      "\n"
      "extern \"C\" __global__ void __launch_bounds__({})\n"
      "    {}(const __grid_constant__ {} args{}) {{\n"
      "  {}<kProblem, kConfig>(args{});\n"
      "}}\n",
      entry.bounds, entry.name, pass == Pass::backward ? "GradientArgs" : "KernelArgs",
      entry.maps ? ", const __grid_constant__ TensorMaps maps" : "", entry.function,
      entry.maps ? ", maps" : "");
}

// ptx::Wgmma<n, dtype, turned>: the instruction names every register of its sums, so that there is
// one text for each n; a kernel gets those that it uses.
std::string wgmma(int n, DType dtype, bool turned) {
  const char* type = dtype == DType::bf16 ? "bf16" : "f16";
  const int count = n / 2;
  std::string registers, sums;
  for (int i = 0; i < count; ++i) {
    registers += fmt::format("{}%{}", i > 0 ? "," : "", i);
    sums += fmt::format("{}\"+f\"(d[{}])", i > 0 ? ", " : "", i);
  }
  const auto function = [&](const char* name, const char* parameter, const std::string& a,
                            const char* operands, int after, const char* flags) {
    return fmt::format(
        "  static __device__ void {}(float (&d)[{}], {}, uint64_t b, int add) {{\n"
        "    asm volatile(\n"
        "        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{}, 0;\\n\"\n"
        "        \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, %{}, p, {}, "
        "{};\\n}}\"\n"
        "        : {}\n"
        "        : {}, \"l\"(b), \"r\"(add));\n"
        "  }}\n",
        name, count, parameter, count + after + 1, n, type, type, registers, a, count + after,
        flags, int(turned), sums, operands);
  };
  const std::string in_registers =
      fmt::format("{{%{},%{},%{},%{}}}", count, count + 1, count + 2, count + 3);
  return fmt::format("template <>\nstruct Wgmma<{}, DType::{}, {}> {{\n", n, type, turned) +
         function("ss", "uint64_t a", fmt::format("%{}", count), "\"l\"(a)", 1, "1, 1, 0") +
         function("rs", "const uint32_t (&a)[4]", in_registers,
                  "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])", 4, "1, 1") +
         "};\n";
}

std::string instructions(const Unit& unit) {
  if (unit.products.empty()) return "";
  std::string text = "#include \"ptx/wgmma.h\"\n\nnamespace attune::ptx {\n";
  for (const Product& product : unit.products)
    text += wgmma(product.n, product.operand, product.turned);
  return text + "}  // namespace attune::ptx\n\n";
}

// ---- headers ----

constexpr std::string_view kInclude = "#include \"";

// What the line includes by quotes; empty: nothing.
std::string_view included_name(std::string_view line) {
  const size_t quote = line.rfind('"');
  if (!line.starts_with(kInclude) || quote <= kInclude.size()) return "";
  return line.substr(kInclude.size(), quote - kInclude.size());
}

// The text's first line, with its end; taken off the text.
std::string_view take_line(std::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size() - 1) + 1;
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end);
  return line;
}

std::vector<size_t> direct_includes(std::string_view text, const std::vector<std::string>& names) {
  std::vector<size_t> found;
  while (!text.empty()) {
    const std::string_view name = included_name(take_line(&text));
    const auto it = std::find(names.begin(), names.end(), name);
    if (it != names.end()) found.push_back(size_t(it - names.begin()));
  }
  return found;
}

Headers make_headers() {
  Headers all;
  for (size_t i = 0; i < kEmbeddedCount; ++i) all.names.emplace_back(kEmbedded[i].name);
  for (size_t i = 0; i < kEmbeddedCount; ++i) {
    all.texts.push_back(root_includes(all.names[i], kEmbedded[i].text, all.names));
    all.digests.push_back(sha256(all.texts[i]));
    all.includes.push_back(direct_includes(all.texts[i], all.names));
  }
  return all;
}

}  // namespace

const Headers& headers() {
  static const Headers all = make_headers();
  return all;
}

std::string root_includes(const std::string& name, std::string_view text,
                          const std::vector<std::string>& known) {
  const std::filesystem::path folder = std::filesystem::path(name).parent_path();
  std::string result;
  while (!text.empty()) {
    const std::string_view line = take_line(&text);
    const std::string_view asked = included_name(line);
    if (asked.empty()) {
      result += line;
      continue;
    }
    const std::string target = (folder / asked).lexically_normal().string();
    if (std::find(known.begin(), known.end(), target) != known.end())
      result += fmt::format("{}{}{}", kInclude, target, line.substr(line.rfind('"')));
    else
      result += line;
  }
  return result;
}

std::vector<size_t> included_headers(std::string_view text) {
  const Headers& all = headers();
  std::vector<bool> seen(all.names.size());
  std::vector<size_t> found, waiting = direct_includes(text, all.names);
  while (!waiting.empty()) {
    const size_t i = waiting.back();
    waiting.pop_back();
    if (seen[i]) continue;
    seen[i] = true;
    found.push_back(i);
    waiting.insert(waiting.end(), all.includes[i].begin(), all.includes[i].end());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string emit(const KernelSpec& spec) {
  const Unit unit = spec.config.rung->unit(spec.key, spec.config);
  std::string text = "#include \"config.h\"\n\n";  // the caller's code may use its integer types
  text +=
      user_function("ATTUNE_SCORE_MOD",
                    "float score_mod(float score, int b, int h, int i, int j, const void* data)",
                    kScoreModName, spec.score_mod);
  text += user_function("ATTUNE_MASK_MOD",
                        "bool mask_mod(int b, int h, int i, int j, const void* data)", kMaskModName,
                        spec.mask_mod);
  if (!spec.score_mod.empty() || !spec.mask_mod.empty()) text += line_directive(text);
  text += instructions(unit);
  for (const char* header : unit.headers) text += fmt::format("#include \"{}\"\n", header);
  text += "\nnamespace attune {\n\n";
  text += constant(spec.key);
  text += constant(spec.config);
  text += fmt::format("constexpr Arch kArch{{.cc = {}, .smem_block = {}, .smem_sm = {}}};\n",
                      spec.arch.cc, spec.arch.smem_block, spec.arch.smem_sm);
  text += "static_assert(invalid_reason(kConfig, kProblem, kArch)[0] == '\\0');\n";
  for (const Entry& entry : unit.entries) text += kernel(entry, spec.key.pass);
  text += "\n}  // namespace attune\n";
  return text;
}

std::vector<const char*> entries(const KernelSpec& spec) {
  std::vector<const char*> names;
  for (const Entry& entry : spec.config.rung->unit(spec.key, spec.config).entries)
    names.push_back(entry.name);
  return names;
}

size_t hash_of(const KernelSpec& spec) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&](auto value) {
    hash = (hash ^ uint64_t(value)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (const ProblemField& f : problem_fields()) mix(f.get(spec.key));
  mix(reinterpret_cast<uintptr_t>(spec.config.rung));
  for (const int32_t value : spec.config.values) mix(value);
  mix(std::hash<std::string>()(spec.score_mod));
  mix(std::hash<std::string>()(spec.mask_mod));
  mix(spec.arch.cc);
  return hash;
}

}  // namespace attune::jit
