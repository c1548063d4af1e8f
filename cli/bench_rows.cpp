#include "cli/bench.hpp"

namespace attune::cli {
namespace {

std::vector<Shape> make_shapes(const BenchOptions& o) {
  if (!o.shapes.empty() && o.sizes_given)
    throw UsageError(
        "--shape says all sizes; --batch, --heads, --seq, --dim and so on cannot join it");
  std::vector<Shape> shapes;
  for (const std::string& text : o.shapes)
    shapes.push_back(parsed("--shape", [&] { return parse_shape(text); }));
  if (!shapes.empty()) return shapes;
  // An option that is not given follows its partner: as many key heads as heads, and so on.
  auto follow = [](const char* option, const std::string& text, int64_t partner) {
    return text.empty() ? std::vector<int64_t>{partner} : values(option, text);
  };
  for (int64_t batch : values("--batch", o.batch))
    for (int64_t heads : values("--heads", o.heads))
      for (int64_t heads_kv : follow("--kv-heads", o.kv_heads, heads))
        for (int64_t seq : values("--seq", o.seq))
          for (int64_t seq_k : follow("--seq-k", o.seq_k, seq))
            for (int64_t dim : values("--dim", o.dim))
              for (int64_t dim_v : follow("--dim-v", o.dim_v, dim))
                shapes.push_back({batch, heads, heads_kv, seq, seq_k, dim, dim_v});
  return shapes;
}

std::vector<Work> works_of_sets(const BenchOptions& o) {
  if (!o.shapes.empty() || o.sizes_given)
    throw UsageError("--set says all shapes; --shape, --seq, --dim and so on cannot join it");
  std::vector<Work> works;
  for (const std::string& name : parsed("--set", [&] { return split_list(o.set); })) {
    const std::vector<Work> rows = set_rows(name);
    if (rows.empty()) {
      std::vector<std::string> known;
      for (const NamedSet& set : named_sets()) known.push_back(set.name);
      throw UsageError(fmt::format("--set: '{}' is not one of {}", name, fmt::join(known, ", ")));
    }
    works.insert(works.end(), rows.begin(), rows.end());
  }
  return works;
}

// A set has its own dtypes and causality; those of the command line replace them, where given.
void replace_given(const BenchOptions& o, std::vector<Work>* works) {
  const auto spread = [&](const auto& values, auto member) {
    std::vector<Work> more;
    for (const Work& work : *works)
      for (auto value : values) {
        Work changed = work;
        changed.*member = value;
        const auto same = [&](const Work& w) {
          return w.set == changed.set && w.shape == changed.shape && w.dtype == changed.dtype &&
                 w.causal == changed.causal;
        };
        if (std::none_of(more.begin(), more.end(), same)) more.push_back(changed);
      }
    *works = more;
  };
  if (o.dtype_given) spread(names("--dtype", o.dtype, kDTypes), &Work::dtype);
  if (o.causal_given) spread(names("--causal", o.causal, kCausal), &Work::causal);
}

}  // namespace

std::vector<Work> make_works(const BenchOptions& o) {
  std::vector<Work> works;
  if (!o.set.empty()) {
    works = works_of_sets(o);
    replace_given(o, &works);
  } else {
    const std::vector<DType> dtypes = names("--dtype", o.dtype, kDTypes);
    const std::vector<bool> causal = names("--causal", o.causal, kCausal);
    for (const Shape& shape : make_shapes(o))
      for (DType dtype : dtypes)
        for (bool is_causal : causal) works.push_back({"", shape, dtype, is_causal});
  }
  for (Work& work : works) work.lse = o.lse;
  return works;
}

Alignment settle_alignment(const BenchOptions& o, const Work& work) {
  if (o.align.empty() && work.causal && work.shape.seq_q != work.shape.seq_k)
    throw UsageError(
        fmt::format("{}: a causal mask over {} queries and {} keys has two meanings; choose with "
                    "--align top-left or --align bottom-right",
                    to_string(work.shape), work.shape.seq_q, work.shape.seq_k));
  return o.align == "bottom-right" ? Alignment::bottom_right : Alignment::top_left;
}

std::string markdown(const std::vector<Cells>& lines, size_t first_number) {
  std::vector<size_t> width(lines[0].size(), 3);
  for (const Cells& line : lines)
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  std::string text;
  for (size_t n = 0; n < lines.size(); ++n) {
    for (size_t i = 0; i < lines[n].size(); ++i)
      text += i < first_number ? fmt::format("| {:<{}} ", lines[n][i], width[i])
                               : fmt::format("| {:>{}} ", lines[n][i], width[i]);
    text += "|\n";
    if (n > 0) continue;
    for (size_t i = 0; i < width.size(); ++i)
      text += i < first_number ? fmt::format("|:{:-<{}}", "", width[i] + 1)
                               : fmt::format("|{:-<{}}:", "", width[i] + 1);
    text += "|\n";
  }
  return text;
}

std::string csv(const std::vector<Cells>& lines) {
  std::string text;
  for (const Cells& line : lines) text += fmt::format("{}\n", fmt::join(line, ","));
  return text;
}

Json work_json(const Work& work, MaskKind mask) {
  const Shape& s = work.shape;
  return {{"set", work.set.empty() ? Json(nullptr) : Json(work.set)},
          {"shape", to_string(s)},
          {"batch", s.batch},
          {"heads", s.heads},
          {"kv_heads", s.heads_kv},
          {"seq", s.seq_q},
          {"seq_k", s.seq_k},
          {"dim", s.dim},
          {"dim_v", s.dim_v},
          {"dtype", name_of(kDTypes, work.dtype)},
          {"causal", work.causal},
          {"lse", work.lse},
          {"mask", name_of(kMasks, mask)}};
}

void write_results(const std::vector<Cells>& lines, size_t first_number, const Json& report,
                   Output& json, Output& csv_file) {
  if (!json.is_stdout() && !csv_file.is_stdout()) print(markdown(lines, first_number));
  csv_file.write(csv(lines));
  json.write(report.dump(2) + "\n");
}

}  // namespace attune::cli
