#include "evolve/report/html.hpp"

#include <fmt/format.h>

#include <cmath>

namespace attune::evolve::html {
namespace {

// Readable at 390 pixels and at 2000, by day and by night.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--ink:#1c2126;--soft:#5a646e;--paper:#fff;--line:#d5dbe1;--band:#f2f5f8;
--heat:20,110,190;--warn:#b3261e;--f0:#7a828a;--f1:#c77700;--f2:#0b6bcb;--f3:#7b3fb5;--f4:#0a8754;--f5:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaee;--soft:#9aa5b0;--paper:#14181c;--line:#353d45;
--band:#1d2329;--heat:80,160,240;--warn:#ff8a80;--f0:#98a2ab;--f1:#f0a33c;--f2:#62aef7;--f3:#bb8cf0;--f4:#4fcf98;--f5:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.15rem;margin:2.2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.5rem 0}
.gain{font-size:1.2rem;max-width:60rem}
a{color:var(--f2)}
pre{background:var(--band);border-radius:.5rem;padding:.6rem;margin:.3rem 0;white-space:pre-wrap;
font:.8125rem/1.4 ui-monospace,monospace}
.soft,figcaption{color:var(--soft);font-size:.875rem}
.warn{color:var(--warn);font-weight:600}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.75rem;padding:0;margin:1rem 0}
.facts div{background:var(--band);border-radius:.5rem;padding:.75rem}
.facts dt{color:var(--soft);font-size:.875rem}
.facts dd{margin:0;font-size:1.05rem}
.facts b{font-size:1.6rem;display:block;line-height:1.2}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible{outline:2px solid var(--f2)}
table{border-collapse:collapse;font-size:.875rem;margin:.5rem 0;min-width:60%}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;overflow-wrap:break-word}
thead th{background:var(--band);font-weight:600}
tbody th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:.8125rem/1.4 ui-monospace,monospace}
td code{display:inline-block;min-width:min(22rem,80vw);overflow-wrap:anywhere}
.long{min-width:14rem;max-width:30rem;overflow-wrap:anywhere}
figure{margin:.5rem 0}
svg{width:100%;height:auto;max-width:42rem;display:block;font:13px system-ui,sans-serif}
svg text{fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1;fill:none}
.winner{stroke:var(--ink);stroke-width:2;fill:none}
.library{stroke:var(--f4);stroke-width:1.5;stroke-dasharray:6 4;fill:none}
svg .mark{fill:var(--ink);font-weight:600}
.best{stroke:var(--ink);stroke-width:1.5;fill:none}
.dot{fill:none;stroke-linecap:round;stroke-width:4;opacity:.45}
.miss{stroke:var(--warn);stroke-width:1;fill:none;opacity:.8}
.step{stroke:var(--paper);stroke-width:1}
.key{list-style:none;padding:0;margin:.25rem 0;display:flex;flex-wrap:wrap;gap:.25rem 1rem;font-size:.875rem}
.key i{display:inline-block;width:.75rem;height:.75rem;border-radius:50%;margin-right:.35rem;background:currentColor}
.heat td{text-align:center;min-width:4.5rem}
)";

std::string plain_times(double r) {
  if (std::isnan(r)) return "unknown";
  if (std::isinf(r)) return "∞";
  return r >= 99.5           ? fmt::format("{:.0f}", r)
         : r >= 9.95         ? fmt::format("{:.1f}", r)
         : r >= 2 || r < 0.5 ? fmt::format("{:.2f}", r)
                             : fmt::format("{:.3f}", r);
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else if ((uint8_t(c) < ' ' && c != '\n' && c != '\t') || c == 0x7f)
      out += "\uFFFD";
    else
      out += c;
  }
  return out;
}

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (uint8_t(text[most]) & 0xc0) == 0x80) --most;  // not inside a letter
  return std::string(text.substr(0, most)) + " …";
}

std::string times(double ratio) { return plain_times(ratio) + "×"; }

std::string times(const std::optional<Interval>& i) {
  if (!i) return "not measured";
  if (i->low <= 0 && std::isinf(i->high)) return times(i->mid) + " (too few samples)";
  return fmt::format("{} ({} to {})", times(i->mid), plain_times(i->low), plain_times(i->high));
}

std::string duration(double s) {
  if (!std::isfinite(s)) return "unknown";
  if (s == 0) return "0 s";
  if (s < 1e-3) return fmt::format("{:.1f} µs", s * 1e6);
  if (s < 1) return fmt::format("{:.3g} ms", s * 1e3);
  return s < 100 ? fmt::format("{:.3g} s", s) : fmt::format("{:.0f} s", s);
}

std::string error(double value) {
  return std::isfinite(value) ? fmt::format("{:.2g}", value) : "not finite";
}

// A long id breaks at its dots.
std::string code(std::string_view text) {
  std::string out = "<code>";
  for (const char c : escape(text)) {
    out += c;
    if (c == '.') out += "<wbr>";
  }
  return out + "</code>";
}

Table::Table(std::string_view caption, const std::vector<std::string>& head, std::string_view align)
    : caption_(escape(caption)), align_(align) {
  text_ = "<thead><tr>";
  for (size_t c = 0; c < head.size(); ++c)
    text_ += fmt::format("<th scope=\"col\"{}>{}</th>", number(c) ? " class=\"n\"" : "",
                         escape(head[c]));
  text_ += "</tr></thead><tbody>\n";
}

Table& Table::row(const std::vector<std::string>& cells) {
  std::vector<std::string> escaped;
  for (const std::string& cell : cells) escaped.push_back(escape(cell));
  return raw_row(escaped);
}

Table& Table::raw_row(const std::vector<std::string>& cells) {
  text_ += "<tr>";
  for (size_t c = 0; c < cells.size(); ++c)
    text_ += fmt::format("<td{}>{}</td>", number(c) ? " class=\"n\"" : "", cells[c]);
  text_ += "</tr>\n";
  ++rows_;
  return *this;
}

// The caption stands outside: inside the box it would be as wide as the table, and cut off.
std::string Table::html() const {
  return fmt::format(
      "<p class=\"soft\">{0}</p><div class=\"scroll\" role=\"region\" tabindex=\"0\" "
      "aria-label=\"{0}\"><table>{1}</tbody></table></div>\n",
      caption_, text_);
}

std::string long_text(std::string_view text) {
  return "<div class=\"long\">" + escape(text) + "</div>";
}

std::string paragraph(std::string_view text) { return fmt::format("<p>{}</p>\n", escape(text)); }

std::string section(std::string_view id, std::string_view title, const std::string& body) {
  return fmt::format(
      "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n<h2 id=\"{0}-title\">{1}</h2>\n{2}"
      "</section>\n",
      escape(id), escape(title), body);
}

std::string page(std::string_view title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n{}</main>"
      "\n</body>\n</html>\n",
      escape(title), kStyle, body);
}

}  // namespace attune::evolve::html
