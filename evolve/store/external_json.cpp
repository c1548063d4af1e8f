// Who gives scores, as JSON and back.
#include "evolve/store/store.hpp"

namespace attune::evolve {
namespace {

// What stands in this run where others have seconds of a call: whoever reads the file is told.
std::string samples_text(const ExternalSpec& s) {
  if (!s.ratio) return s.minimize ? "exp((score - start) / scale)" : "exp((start - score) / scale)";
  return s.minimize ? "score" : "1 / score";
}

}  // namespace

Json to_json(const ExternalSpec& s) {
  return {{"file", s.file},
          {"command", s.command},
          {"python", s.python},
          {"judge", s.judge},
          {"hash", s.hash},
          {"metric", s.metric},
          {"goal", s.minimize ? "minimize" : "maximize"},
          {"seconds", s.seconds},
          {"retries", s.retries},
          {"cascade", s.cascade},
          {"thresholds", s.thresholds},
          {"features", s.features},
          {"scores_by", s.judged() ? "Attune's judge" : "the user's evaluator"},
          {"samples", samples_text(s)},
          {"start",
           {{"score", s.start},
            {"by", s.ratio ? "ratio" : "difference"},
            {"scale", s.scale},
            {"stages", s.stages}}}};
}

ExternalSpec external_spec_of(const Json& json) {
  ExternalSpec s;
  json.at("file").get_to(s.file);
  json.at("command").get_to(s.command);
  json.at("python").get_to(s.python);
  s.judge = json.value("judge", std::vector<std::string>());  // older runs have none
  json.at("hash").get_to(s.hash);
  json.at("metric").get_to(s.metric);
  s.minimize = json.at("goal") == "minimize";
  s.seconds = number_of(json.at("seconds"));
  json.at("retries").get_to(s.retries);
  json.at("cascade").get_to(s.cascade);
  json.at("thresholds").get_to(s.thresholds);
  s.thresholds.resize(3, 0.9);  // the runner reads as many
  json.at("features").get_to(s.features);
  const Json& start = json.at("start");
  s.start = number_of(start.at("score"));
  s.ratio = start.at("by") == "ratio";
  s.scale = number_of(start.at("scale"));
  start.at("stages").get_to(s.stages);
  return s;
}

}  // namespace attune::evolve
