#include "evolve/propose/exchange.hpp"

#include <fmt/format.h>

#include "evolve/compile/flags.hpp"
#include "evolve/propose/edits.hpp"
#include "src/api/tensor_check.hpp"

namespace attune::evolve {

Json to_json(const Exchange& e) {
  return {{"k", e.k},
          {"op", e.op},
          {"who", e.who},
          {"parent", e.parent},
          {"repairs", e.repairs},
          {"messages", e.messages},
          {"answer", e.answer},
          {"error", e.error},
          {"tokens_in", e.tokens_in},
          {"tokens_out", e.tokens_out},
          {"estimated", e.estimated},
          {"cost", e.cost < 0 ? Json() : Json(e.cost)},
          {"status", e.status},
          {"tries", e.tries},
          {"seconds", e.seconds},
          {"at", e.at}};
}

Exchange exchange_of(const Json& json) {
  Exchange e;
  json.at("k").get_to(e.k);
  json.at("op").get_to(e.op);
  json.at("who").get_to(e.who);
  json.at("parent").get_to(e.parent);
  json.at("repairs").get_to(e.repairs);
  e.messages = json.value("messages", Json());
  json.at("answer").get_to(e.answer);
  json.at("error").get_to(e.error);
  json.at("tokens_in").get_to(e.tokens_in);
  json.at("tokens_out").get_to(e.tokens_out);
  json.at("estimated").get_to(e.estimated);
  e.cost = json.at("cost").is_null() ? -1 : number_of(json.at("cost"));
  json.at("status").get_to(e.status);
  json.at("tries").get_to(e.tries);
  e.seconds = number_of(json.at("seconds"));
  e.at = number_of(json.at("at"));
  return e;
}

Json to_json(const Learned& l) {
  Json texts = Json::array();
  for (const NewTexts::Text& t : l.news.texts)
    texts.push_back({{"block", t.block}, {"text", t.text}});
  return {{"n", l.n}, {"k", l.k}, {"label", l.news.label}, {"form", l.form}, {"texts", texts}};
}

Learned learned_of(const Json& json) {
  Learned l;
  json.at("n").get_to(l.n);
  json.at("k").get_to(l.k);
  json.at("label").get_to(l.news.label);
  json.at("form").get_to(l.form);
  for (const Json& t : json.at("texts"))
    l.news.texts.push_back({t.at("block").get<std::string>(), t.at("text").get<std::string>()});
  return l;
}

Status read_exchanges(const Store& store, Exchanges* exchanges) try {
  *exchanges = {};
  Store::Events events;
  ATTUNE_TRY(store.events({kExchange, kRefused, kLearned}, &events));
  for (const auto& [name, json] : events) {
    if (name == kExchange) {
      exchanges->all.push_back(exchange_of(json));
      if (exchanges->all.back().k != int64_t(exchanges->all.size()) - 1)
        return Status::invalid(fmt::format("{}: exchange {} stands in place {}", store.folder(),
                                           exchanges->all.back().k, exchanges->all.size() - 1));
    } else if (name == kRefused) {
      exchanges->refused[json.at("k").get<int64_t>()] = {json.at("verdict").get<std::string>(),
                                                         json.at("why").get<std::string>()};
    } else {
      Learned learned = learned_of(json);
      const int64_t n = learned.n;
      exchanges->used[n] = std::move(learned);
    }
  }
  return {};
} catch (const Json::exception& error) {
  return Status::invalid(
      fmt::format("{}: an exchange cannot be read ({})", store.folder(), error.what()));
}

Derived derive(const GrowingSpace& space, const Exchange& exchange, const Genome& parent,
               const std::string& label) {
  Derived d;
  const std::string text = without_flags_comment(space.program(parent));
  const AppliedAnswer applied = exchange.op == "manual" ? apply_file(exchange.answer, text)
                                                        : apply_answer(exchange.answer, text);
  d.form = applied.form;
  if (!applied.ok()) {
    d.refusal = {"not_applied", applied.why};
    return d;
  }
  if (applied.text == text) {
    d.refusal = {"duplicate", "it is the parent, unchanged"};
    return d;
  }
  std::string whole = applied.text;
  if (!whole.ends_with('\n')) whole += '\n';
  const Status s = space.read_text(whole, parent, label, &d.news, &d.genome);
  if (!s.ok()) d.refusal = {s.message == kOutsideChanged ? "cheated" : "not_applied", s.message};
  return d;
}

Status learn_all(const Store& store, Space* space) {
  Exchanges exchanges;
  ATTUNE_TRY(read_exchanges(store, &exchanges));
  if (exchanges.used.empty()) return {};
  auto* growing = dynamic_cast<GrowingSpace*>(space);
  if (growing == nullptr) return Status::invalid(store.folder() + ": it has texts of no program");
  for (const auto& [n, learned] : exchanges.used) ATTUNE_TRY(growing->learn(learned.news));
  return {};
}

}  // namespace attune::evolve
