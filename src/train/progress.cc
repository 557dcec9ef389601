#include "train/progress.h"

namespace haversack {
namespace {

// Every field with its name in state.json: written and read from one table.
template <typename Progress, typename Number, typename Maybe>
void VisitFields(Progress& p, Number number, Maybe maybe) {
  number("step", p.step);
  number("updates", p.updates);
  number("cursor", p.cursor);
  number("tokens", p.tokens);
  number("skipped", p.skipped);
  number("bad_in_row", p.bad_in_row);
  maybe("projection_epoch", p.projection_epoch);
  maybe("evaluated_step", p.evaluated_step);
  maybe("evaluated_loss", p.evaluated_loss);
  maybe("best_loss", p.best_loss);
  maybe("best_step", p.best_step);
}

}  // namespace

nlohmann::json ToJson(const Progress& progress) {
  nlohmann::json json;
  VisitFields(
      progress, [&](const char* name, const auto& value) { json[name] = value; },
      [&](const char* name, const auto& value) {
        if (value) json[name] = *value;
      });
  return json;
}

Progress ProgressFromJson(const nlohmann::json& json) {
  Progress progress;
  VisitFields(
      progress, [&](const char* name, auto& value) { json.at(name).get_to(value); },
      [&](const char* name, auto& value) {
        if (json.contains(name))
          value = json[name].get<typename std::decay_t<decltype(value)>::value_type>();
      });
  return progress;
}

}  // namespace haversack
