#include "evolve/report/best_source.hpp"

#include <fmt/format.h>

#include "evolve/compile/tile_compile.hpp"
#include "src/select/select.hpp"
#include "src/select/tuned.hpp"

namespace attune::evolve {
namespace {

constexpr const char* kIncludes = R"(
#include <attune/attention.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

)";

constexpr const char* kProgram = R"(
// The elements of a tensor, as they lie in memory.
struct Buffer {
  Buffer(attune_dtype type, int64_t count)
      : dtype(type), bytes(size_t(count) * (type == ATTUNE_F32 ? 4 : 2)) {}

  void set(size_t i, float x) {
    if (dtype == ATTUNE_F32) {
      std::memcpy(&bytes[4 * i], &x, 4);
      return;
    }
    uint16_t bits = uint16_t(std::bit_cast<uint32_t>(x) >> 16);
    if (dtype == ATTUNE_F16) {
      int exponent = 0;
      const float fraction = std::frexp(std::abs(x), &exponent);
      bits = uint16_t(x < 0 ? 0x8000 : 0);
      if (exponent >= -13) bits |= uint16_t((exponent + 14) << 10 | int((2 * fraction - 1) * 1024));
    }
    std::memcpy(&bytes[2 * i], &bits, 2);
  }

  double get(size_t i) const {
    float x = 0;
    uint16_t bits = 0;
    if (dtype == ATTUNE_F32) {
      std::memcpy(&x, &bytes[4 * i], 4);
      return x;
    }
    std::memcpy(&bits, &bytes[2 * i], 2);
    if (dtype == ATTUNE_BF16) return std::bit_cast<float>(uint32_t(bits) << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return NAN;
    const double size = exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
  }

  attune_dtype dtype;
  std::vector<uint8_t> bytes;
};

Buffer random_buffer(attune_dtype dtype, int64_t count, std::mt19937& random) {
  Buffer buffer(dtype, count);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < size_t(count); ++i) buffer.set(i, normal(random));
  return buffer;
}

struct Tensors {
  Buffer q, k, v, out;
  std::vector<float> lse;
};

// The call; or that of its first head alone, whose elements come first.
attune::Args call_of(const Shape& s, const Tensors& t, bool first_head) {
  const int64_t batch = first_head ? 1 : s.batch, heads = first_head ? 1 : s.heads,
                heads_kv = first_head ? 1 : s.heads_kv;
  attune::Args a;
  a.q = attune::tensor(t.q.bytes.data(), s.dtype, {batch, heads, s.seq_q, s.dim});
  a.k = attune::tensor(t.k.bytes.data(), s.dtype, {batch, heads_kv, s.seq_k, s.dim});
  a.v = attune::tensor(t.v.bytes.data(), s.dtype, {batch, heads_kv, s.seq_k, s.dim_v});
  a.out = attune::tensor(t.out.bytes.data(), s.dtype, {batch, heads, s.seq_q, s.dim_v});
  if (s.lse) a.lse = attune::tensor(t.lse.data(), ATTUNE_F32, {batch, heads, s.seq_q});
  a.causal = s.causal;
  a.alignment = s.alignment;
  a.threads = kThreads;
  a.mode = kMode;
  return a;
}

double median_seconds(const attune::Args& call, size_t* calls) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  attune::forward(call);
  const Clock::time_point begin = Clock::now();
  while (seconds.size() < 5 || Clock::now() - begin < std::chrono::seconds(1)) {
    const Clock::time_point before = Clock::now();
    attune::forward(call);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::sort(seconds.begin(), seconds.end());
  *calls = seconds.size();
  return seconds[seconds.size() / 2];
}

// Of the first head, against the library's float64 oracle.
double error_of(const Shape& s, const Tensors& t) {
  Tensors first = t;
  attune::Args oracle = call_of(s, first, true);
  oracle.mode = ATTUNE_REFERENCE;
  attune::forward(oracle);
  double error = 0;
  for (size_t i = 0; i < size_t(s.seq_q * s.dim_v); ++i) {
    const double off = std::abs(t.out.get(i) - first.out.get(i));
    if (!(off <= error)) error = off;  // a NaN stays
  }
  for (size_t i = 0; s.lse && i < size_t(s.seq_q); ++i) {
    const double exact = first.lse[i], off = std::abs(t.lse[i] - exact) / std::max(exact, 1.0);
    if (!(off <= error)) error = off;
  }
  return error;
}

bool run(const Shape& s) {
  std::mt19937 random(1);
  Tensors t{random_buffer(s.dtype, s.batch * s.heads * s.seq_q * s.dim, random),
            random_buffer(s.dtype, s.batch * s.heads_kv * s.seq_k * s.dim, random),
            random_buffer(s.dtype, s.batch * s.heads_kv * s.seq_k * s.dim_v, random),
            Buffer(s.dtype, s.batch * s.heads * s.seq_q * s.dim_v),
            std::vector<float>(s.lse ? size_t(s.batch * s.heads * s.seq_q) : 0)};
  const attune::Args call = call_of(s, t, false);
  const std::string why = attune::explain(call);
  if (why.find(kChosen) == std::string::npos) {
    std::fprintf(stderr, "%s: the evolved kernel does not run here:\n%s\n", s.name, why.c_str());
    return false;
  }
  size_t calls = 0;
  const double seconds = median_seconds(call, &calls), error = error_of(s, t);
  const double limit = s.dtype == ATTUNE_F32 ? 1e-5 : s.dtype == ATTUNE_F16 ? 2e-3 : 2e-2;
  std::printf("%s: %.4g ms a call (median of %zu, data in the caches), error %.1e, allowed %.0e\n",
              s.name, 1e3 * seconds, calls, error, limit);
  return error <= limit;
}

int main() {
  // The library reads its tuned table once, from here.
  std::string folder = (std::filesystem::temp_directory_path() / "best-program-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::ofstream(folder + "/tuned.json") << kTable;
  setenv("ATTUNE_CACHE_DIR", folder.c_str(), 1);
  bool good = true;
  try {
    for (const Shape& shape : kShapes) good = run(shape) && good;
  } catch (const attune::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    good = false;
  }
  std::filesystem::remove_all(folder);
  return good ? 0 : 1;
}
)";

const char* dtype_constant(DType dtype) {
  return dtype == DType::f32 ? "ATTUNE_F32" : dtype == DType::f16 ? "ATTUNE_F16" : "ATTUNE_BF16";
}

// "AVX3": what the run's calls had.
std::string machine_isa(const RunView& v) {
  const auto isa = v.meta.environment.find("isa");
  return isa != v.meta.environment.end() && isa->is_string() ? isa->get<std::string>() : "";
}

std::string genes(const RunView& v) {
  const Family& family = *family_of(*v.space, *v.genome);
  std::string text =
      fmt::format("// {}: {}\n", comment_text(family.name), comment_text(family.meaning));
  for (size_t g = 0; g < family.genes.size(); ++g)
    text += fmt::format("//   {:<18} {:>4}   {} ({})\n", comment_text(family.genes[g].name),
                        v.genome->genes[g], comment_text(family.genes[g].meaning),
                        level_name(family.genes[g].level));
  return text;
}

std::string table(const RunView& v, const CpuVariant& variant) {
  const cpu::IsaConfig config{variant.isa == machine_isa(v) ? "" : variant.isa, variant.config};
  const auto processor = v.meta.environment.find("processor");
  Json rows = Json::array();
  for (const TimedShape& s : v.meta.shapes) {
    const TunedSizes sizes = TunedSizes::of(s.problem);
    rows.push_back(
        {{"key", problem_id(s.problem)},
         {"machine",
          {{"arch", machine_isa(v)},
           {"device", processor != v.meta.environment.end() ? *processor : Json("")},
           {"threads", v.meta.threads}}},
         {"sizes", {{"heads", sizes.heads}, {"seq_q", sizes.seq_q}, {"seq_k", sizes.seq_k}}},
         {"config", cpu::to_string(config)},
         {"provenance", {{"date", v.meta.created}}}});
  }
  const Json all{{"format", "attune tuned table"}, {"schema", 1}, {"rows", rows}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string shapes(const RunView& v) {
  std::string text;
  for (const TimedShape& s : v.meta.shapes) {
    const Problem& p = s.problem;
    text += fmt::format("    {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}},\n",
                        literal_text(s.name), dtype_constant(p.dtype), p.batch, p.heads_q,
                        p.heads_kv, p.seq_q, p.seq_k, p.dim, p.dim_v, p.causal, p.lse,
                        p.alignment == Alignment::bottom_right ? "ATTUNE_ALIGN_BOTTOM_RIGHT"
                                                               : "ATTUNE_ALIGN_TOP_LEFT");
  }
  return text;
}

}  // namespace

std::string comment_text(const std::string& text) {
  std::string line;
  for (const char c : text) line += c == '\n' || c == '\r' || c == '\\' ? ' ' : c;
  return line;
}

std::string literal_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += uint8_t(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

bool library_runs(const RunView& v) {
  if (v.meta.device != "cpu" || !v.best.source.empty() || !v.genome) return false;
  const std::optional<CpuVariant> variant = parse_cpu_variant(v.best.config);
  return variant && (!variant->fused || !needs_tile(*variant));
}

std::string library_program(const RunView& v) {
  const CpuVariant variant = *parse_cpu_variant(v.best.config);
  std::string text = kIncludes + genes(v);
  text += fmt::format("constexpr attune_mode kMode = {};\n",
                      variant.fused ? "ATTUNE_FUSED" : "ATTUNE_NAIVE");
  text += fmt::format("constexpr int kThreads = {};\n\n", v.meta.threads);
  text +=
      "// How the library is told of it. A row holds for its processor, instruction set and\n"
      "// number of threads; `attune evolve --promote` writes the same into the user's table.\n";
  text += fmt::format("constexpr const char* kTable = R\"table({})table\";\n\n",
                      variant.fused ? table(v, variant) : "");
  text += "// What attune_explain says of a call that gets it.\n";
  text += fmt::format(
      "constexpr const char* kChosen = {};\n",
      literal_text(variant.fused ? "\"config\": \"" + cpu::to_string(variant.config) + "\""
                                 : "\"mode\": \"naive\""));
  text += R"(
struct Shape {
  const char* name;
  attune_dtype dtype;
  int64_t batch, heads, heads_kv, seq_q, seq_k, dim, dim_v;
  bool causal, lse;
  attune_alignment alignment;
};
constexpr Shape kShapes[] = {
)";
  return text + shapes(v) + "};\n" + kProgram;
}

}  // namespace attune::evolve
