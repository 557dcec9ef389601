#include "dist/options.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace haversack {
namespace {

// The values of one flag by name.
template <typename Value, size_t n>
using Choices = std::array<std::pair<const char*, Value>, n>;

template <typename Value, size_t n>
Value Parse(const char* flag, const Choices<Value, n>& choices, const std::string& text) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  throw UserError(ExitCode::kUsage, "{}: '{}' is unknown; there are {}", flag, text, known);
}

template <typename Value, size_t n>
std::string Name(const Choices<Value, n>& choices, Value wanted) {
  for (const auto& [name, value] : choices) {
    if (value == wanted) return name;
  }
  return "?";
}

constexpr Choices<DistMode, 4> kModes = {{{"none", DistMode::kNone},
                                          {"ddp", DistMode::kDdp},
                                          {"diloco", DistMode::kDiloco},
                                          {"adloco", DistMode::kAdloco}}};
constexpr Choices<LrScaling, 3> kScalings = {
    {{"none", LrScaling::kNone}, {"sqrt", LrScaling::kSqrt}, {"linear", LrScaling::kLinear}}};
constexpr Choices<BatchTest, 2> kTests = {
    {{"norm", BatchTest::kNorm}, {"augmented", BatchTest::kAugmented}}};

}  // namespace

DistMode ParseDistMode(const std::string& text) { return Parse("--dist", kModes, text); }
std::string ToText(DistMode mode) { return Name(kModes, mode); }

LrScaling ParseLrScaling(const std::string& text) {
  return Parse("--batch-lr-scaling", kScalings, text);
}
std::string ToText(LrScaling scaling) { return Name(kScalings, scaling); }

BatchTest ParseBatchTest(const std::string& text) { return Parse("--batch-test", kTests, text); }
std::string ToText(BatchTest test) { return Name(kTests, test); }

}  // namespace haversack
