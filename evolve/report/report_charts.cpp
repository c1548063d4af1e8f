#include "evolve/report/report_charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "evolve/report/html.hpp"

namespace attune::evolve {
namespace {

// Narrow, so that letters stay readable when a phone shrinks it.
constexpr double kWidth = 480, kHeight = 300;
constexpr double kLeft = 50, kRight = 12, kTop = 30, kBottom = 44;
constexpr double kMissRow = kHeight - kBottom - 5;  // where failures are marked
constexpr int kColours = 6;                         // --f0 .. --f5

struct Scale {
  double low = 0, high = 1, from = 0, to = 1;
  double operator()(double value) const {
    return from + (to - from) * (value - low) / (high - low);
  }
};

double x_of(const Record& r) { return double(r.proposal.n); }

bool shown(const Record& r) { return r.outcome.ok && std::isfinite(r.outcome.fitness); }

// 1, 2 and 5 times a power of ten, at most `most` steps.
std::vector<double> linear_ticks(double high, int most) {
  double step = std::pow(10, std::floor(std::log10(high / most)));
  for (double factor : {1, 2, 5, 10})
    if (high / (step * factor) <= most) {
      step *= factor;
      break;
    }
  std::vector<double> ticks;
  for (int i = 0; i * step <= high * 1.0001; ++i) ticks.push_back(i * step);
  return ticks;
}

// The coarsest set of round ratios that has three within the range.
std::vector<double> log_ticks(double low, double high) {
  const std::vector<std::vector<double>> sets = {{1}, {1, 3}, {1, 2, 5}, {1, 1.2, 1.5, 2, 3, 5, 7}};
  std::vector<double> ticks;
  if (!(low > 1e-300 && high < 1e300)) return ticks;  // powers of ten would never reach the end
  for (const std::vector<double>& set : sets) {
    ticks.clear();
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10)
      for (double tick : set)
        if (tick * power >= low * 0.999 && tick * power <= high * 1.001)
          ticks.push_back(tick * power);
    if (ticks.size() >= 3) break;
  }
  return ticks;
}

std::string axes(const Scale& x, const Scale& y) {
  std::string svg;
  for (double tick : log_ticks(std::exp(y.low), std::exp(y.high))) {
    const double at = y(std::log(tick));
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:.4g}×</text>\n",
        kLeft, at, kWidth - kRight, kLeft - 6, at + 4, tick);
  }
  for (double tick : linear_ticks(x.high, 6))
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>\n",
                       x(tick), kHeight - kBottom + 18, tick);
  return svg + fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                           (kLeft + kWidth - kRight) / 2, kHeight - 6, "evaluations");
}

std::string colour(int family) {
  return fmt::format("var(--f{})", std::clamp(family, 0, kColours - 1));
}

// All of one family are one path: a thousand dots stay small.
std::string dots(const RunView& view, const Scale& x, const Scale& y) {
  std::map<int, std::string> paths;
  std::string misses;
  for (const Record& r : view.records) {
    if (shown(r))
      paths[r.proposal.genome.family] +=
          fmt::format("M{:.1f} {:.1f}h0", x(x_of(r)), y(r.outcome.fitness));
    else
      misses += fmt::format("M{:.1f} {}v8", x(x_of(r)), kMissRow);
  }
  std::string svg;
  for (const auto& [family, path] : paths)
    svg +=
        fmt::format("<path class=\"dot\" style=\"stroke:{}\" d=\"{}\"/>\n", colour(family), path);
  if (!misses.empty()) svg += fmt::format("<path class=\"miss\" d=\"{}\"/>\n", misses);
  return svg;
}

std::string best_line(const RunView& view, const Scale& x, const Scale& y) {
  std::string line, steps;
  for (int64_t n : view.accepted) {
    const Record& r = *view.record(n);
    if (!shown(r)) continue;
    const double px = x(x_of(r)), py = y(r.outcome.fitness);
    line += line.empty() ? fmt::format("M{:.1f} {:.1f}", px, py)
                         : fmt::format("H{:.1f}V{:.1f}", px, py);
    steps += fmt::format(
        "<circle class=\"step\" style=\"fill:{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" "
        "r=\"4.5\"><title>{}: {}, {}</title></circle>\n",
        colour(r.proposal.genome.family), px, py, n, html::times(speed_of(r)),
        html::escape(html::shortened(r.candidate.id, 120)));
  }
  if (line.empty()) return "";
  return fmt::format("<path class=\"best\" d=\"{}H{}\"/>\n{}", line, kWidth - kRight, steps);
}

// The library's own choice over the start, as the final comparison found it; NaN without one.
double library_speed(const RunView& view) {
  const std::optional<Interval> ratio =
      view.final ? ratio_of(view, *view.final, view.start, view.library) : std::nullopt;
  return ratio && ratio->mid > 0 ? std::log(ratio->mid) : NAN;
}

std::string library_line(const RunView& view, const Scale& y) {
  const double speed = library_speed(view);
  if (!std::isfinite(speed)) return "";
  return fmt::format(
      "<path class=\"library\" d=\"M{0} {1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\">library's "
      "own choice</text>\n",
      kLeft, y(speed), kWidth - kRight, kLeft + 10, y(speed) - 6);
}

std::string winner_mark(const RunView& view, const Scale& x, const Scale& y) {
  const Record* r = view.record(view.best_n);
  if (r == nullptr || !shown(*r)) return "";
  const double px = x(x_of(*r)), py = y(r->outcome.fitness);
  const bool left = px > kWidth / 2;  // where the word has room
  return fmt::format(
      "<circle class=\"winner\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"8\"/><text class=\"mark\" "
      "x=\"{2:.1f}\" y=\"{3:.1f}\" text-anchor=\"{4}\">{5}</text>\n",
      px, py, left ? px - 12 : px + 12, py < kTop + 30 ? py + 22 : py - 10, left ? "end" : "start",
      view.winner >= 0 ? "winner" : "best so far");
}

std::string step_name(const Axis& axis, int step) {
  return step >= 0 && size_t(step) < axis.steps.size() ? axis.steps[size_t(step)]
                                                       : fmt::format("step {}", step);
}

}  // namespace

std::string family_key(const RunView& view) {
  std::string list = "<ul class=\"key\">";
  const std::vector<Family>& families = view.space->families();
  for (size_t f = 0; f < families.size(); ++f)
    list += fmt::format("<li><i style=\"color:{}\"></i>{}</li>", colour(int(f)),
                        html::escape(families[f].name));
  return list +
         "<li>large dots and line: accepted steps</li><li>ring: the winner</li><li>ticks at the "
         "bottom: "
         "failed "
         "candidates</li></ul>\n";
}

std::string progress_chart(const RunView& view) {
  double low = 0, high = std::log(1.1), last = 1;
  for (const Record& r : view.records) {
    last = std::max(last, x_of(r));
    if (!shown(r)) continue;
    low = std::min(low, r.outcome.fitness);
    high = std::max(high, r.outcome.fitness);
  }
  if (const double library = library_speed(view); std::isfinite(library)) {
    low = std::min(low, library);
    high = std::max(high, library);
  }
  const double margin = 0.04 * (high - low);
  const Scale x{0, last, kLeft + 6, kWidth - kRight - 6};
  const Scale y{low - margin, high + margin, kMissRow - 4, kTop};
  const std::string words = fmt::format(
      "Speed relative to the start over evaluations, logarithmic: {} candidates, {} accepted "
      "steps, "
      "the best at {}. The accepted steps are in the table below.",
      view.records.size(), view.accepted.size(),
      view.accepted.empty() ? "nothing"
                            : html::times(speed_of(*view.record(view.accepted.back()))));
  return fmt::format(
      "<figure><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}{}{}{}{}</svg>"
      "<figcaption>Speed of each candidate relative to the start, in the order of the search"
      "</figcaption></figure>\n",
      kWidth, kHeight, html::escape(words), axes(x, y), library_line(view, y), dots(view, x, y),
      best_line(view, x, y), winner_mark(view, x, y));
}

std::string archive_map(const RunView& view) {
  const std::vector<Axis>& axes = view.space->axes();
  if (view.elites.empty() || axes.size() != kAxes)
    return html::paragraph("No cell of the archive was reached.");
  std::map<Cell, Elite> best;
  double low = view.elites[0].fitness, high = low;
  for (const Elite& e : view.elites) {
    const auto [at, fresh] = best.try_emplace(e.cell, e);
    if (!fresh && e.fitness > at->second.fitness) at->second = e;
    low = std::min(low, e.fitness);
    high = std::max(high, e.fitness);
  }
  std::map<int, std::map<std::pair<int, int>, Elite>> slices;
  for (const auto& [cell, e] : best) slices[cell.at[0]][{cell.at[1], cell.at[2]}] = e;

  std::string out;
  for (const auto& [slice, cells] : slices) {
    const std::string title = fmt::format("{}: {}", axes[0].name, step_name(axes[0], slice));
    std::string body;
    for (int row = 0; row < int(axes[1].steps.size()); ++row) {
      body += fmt::format("<tr><th scope=\"row\">{}</th>", html::escape(step_name(axes[1], row)));
      for (int column = 0; column < int(axes[2].steps.size()); ++column) {
        const auto at = cells.find({row, column});
        if (at == cells.end()) {
          body += "<td>–</td>";
          continue;
        }
        const double share = high > low ? (at->second.fitness - low) / (high - low) : 1;
        body += fmt::format("<td style=\"background:rgba(var(--heat),{:.2f})\">{}</td>",
                            0.08 + 0.5 * share, html::times(std::exp(at->second.fitness)));
      }
      body += "</tr>\n";
    }
    std::string head;
    for (const std::string& step : axes[2].steps)
      head += fmt::format("<th scope=\"col\">{}</th>", html::escape(step));
    out += fmt::format(
        "<p class=\"soft\">{0}; down: {1}, across: {2}</p><div class=\"scroll heat\" "
        "role=\"region\" tabindex=\"0\" aria-label=\"{0}\"><table><thead><tr><td></td>{3}</tr>"
        "</thead><tbody>\n{4}</tbody></table></div>\n",
        html::escape(title), html::escape(axes[1].name), html::escape(axes[2].name), head, body);
  }
  return out;
}

}  // namespace attune::evolve
