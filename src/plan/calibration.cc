#include "plan/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "codec/codec_error.h"
#include "codec/columns.h"
#include "codec/format.h"

namespace haversack {
namespace {

// Long enough for attention to look back, short enough to be a small part of the start. Shares of V
// hardly depend on it: both the error and V go down as a micro-batch gets longer.
constexpr int64_t kMostTokens = 256;
constexpr int64_t kLeastTokens = 32;
// Consecutive differences of so many gradients give V.
constexpr int kVarianceBatches = 8;
constexpr int kCheckBatches = 3;
constexpr RandomKey kMeasureKey = {.seed = 0, .purpose = RandomPurpose::kRounding};

// Sums in double by blocks of fixed size: independent of the number of threads.
struct PairSums {
  double aa = 0, bb = 0, ab = 0, dd = 0;
};

PairSums SumPairs(const float* a, const float* b, int64_t count) {
  constexpr int64_t kBlock = int64_t{1} << 16;
  std::vector<PairSums> blocks((count + kBlock - 1) / kBlock);
  ParallelFor(static_cast<int64_t>(blocks.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      PairSums& sums = blocks[block];
      for (int64_t i = block * kBlock; i < std::min(count, (block + 1) * kBlock); ++i) {
        const double x = a[i], y = b[i];
        sums.aa += x * x;
        sums.bb += y * y;
        sums.ab += x * y;
        sums.dd += (x - y) * (x - y);
      }
    }
  });
  PairSums total;
  for (const PairSums& sums : blocks) {
    total.aa += sums.aa;
    total.bb += sums.bb;
    total.ab += sums.ab;
    total.dd += sums.dd;
  }
  return total;
}

std::string ColumnsKey(const Value& value, const Piece& piece, int count) {
  return fmt::format("{}/{} {}", value.name, piece.name, count);
}

// The codecs' names: "bf16,bf16,int8".
std::vector<std::string> Formats(const Action& action) {
  std::vector<std::string> names;
  for (const CodecSpec& codec : action.codecs) names.emplace_back(codec.format->name());
  return names;
}

// The action with `sensitive` for the sensitive pieces and `rest` for the others.
const Action& ActionWith(const OpenValue& open, const std::string& sensitive,
                         const std::string& rest) {
  std::vector<std::string> wanted;
  for (const bool s : open.sensitive) wanted.push_back(s ? sensitive : rest);
  for (const Action& action : open.actions) {
    if (Formats(action) == wanted) return action;
  }
  HAVERSACK_CHECK(false, "no {}/{} action for value {}", sensitive, rest, open.value);
}

}  // namespace

Calibration::Calibration(const Graph& whole, const Graph& one_block, const ParamLayout& layout,
                         const CalibrationMemory& memory, int64_t seq, Batches batches)
    : whole_(whole),
      one_block_(one_block),
      layout_(layout),
      memory_(memory),
      batches_(std::move(batches)),
      shape_{.sequences = 1, .seq = std::min(seq, kMostTokens)},
      open_(OpenValues(one_block, ActionSet())) {
  const auto fits = [&] {
    // Encoded forms come on top of what the keep plan holds.
    const Schedule keep = Lower(whole, KeepPlan(whole, 1), shape_, ScheduleMode::kTrain);
    return keep.arena_bytes / 2 * 3 <= memory.region_bytes;
  };
  while (shape_.seq > 0 && !fits()) {
    shape_.seq = shape_.seq / 2 >= kLeastTokens ? shape_.seq / 2 : 0;
  }
}

void Calibration::Gradient(const Plan& plan, int64_t batch, float* grads, bool accumulate,
                           const Executor::Observer& observer) {
  const Schedule schedule = Lower(whole_, plan, shape_, ScheduleMode::kTrain);
  HAVERSACK_CHECK(schedule.arena_bytes <= memory_.region_bytes, "{} of {} bytes",
                  schedule.arena_bytes, memory_.region_bytes);
  region_bytes_ = std::max(region_bytes_, schedule.arena_bytes);
  ModelState state;
  state.weights = const_cast<float*>(memory_.weights);  // a kTrain schedule only reads them
  state.grads = grads;
  state.basis = memory_.basis;
  state.workspace = memory_.workspace;
  Executor executor(whole_, layout_, state, memory_.region, memory_.region_bytes);
  executor.set_observer(observer);
  MicroBatch micro = batches_(batch, shape_.seq);
  double loss = 0;
  micro.loss_sum = &loss;
  executor.Run(schedule, micro, accumulate);
}

void Calibration::MeasureErrors(const Plan& plan) {
  std::vector<std::vector<Action>> actions(whole_.values.size());
  for (size_t v = 0; v < actions.size(); ++v) actions[v].push_back(plan.actions[v]);
  for (int layer = 0; layer < whole_.layers; ++layer) {
    for (const OpenValue& open : open_) {
      std::vector<Action>& all = actions[ValueInLayer(whole_, one_block_, open.value, layer)];
      all.insert(all.end(), open.actions.begin(), open.actions.end());
    }
  }
  const auto last = static_cast<NodeId>(whole_.nodes.size()) - 2;
  Gradient(KeepPlan(whole_, 1), 0, memory_.first, false,
           [&](const Schedule& schedule, const Instr& instr, double) {
             // The forward pass is over: all that the keep plan holds is there.
             if (instr.kind != InstrKind::kForward || instr.node != last) return;
             for (const Buffer& buffer : schedule.buffers) {
               if (!buffer.kept || buffer.kind != BufferKind::kValue) continue;
               AddErrors(buffer.value, actions[buffer.value],
                         reinterpret_cast<const float*>(memory_.region + buffer.offset));
             }
           });
}

void Calibration::AddErrors(ValueId v, const std::vector<Action>& actions, const float* x) {
  const Value& value = whole_.values[v];
  for (size_t p = 0; p < value.pieces.size(); x += value.pieces[p++].cols) {
    const Piece& piece = value.pieces[p];
    for (const Action& action : actions) {
      if (action.kind != Action::Kind::kEncode) continue;
      const CodecSpec& codec = action.codecs[p];
      std::vector<int32_t>& columns = columns_[ColumnsKey(value, piece, codec.outliers)];
      if (static_cast<int>(columns.size()) != codec.outliers) {
        columns = LargestColumns(x, value.cols, shape_.seq, piece.cols, codec.outliers);
      }
      double& error = noise_.error[ErrorKey(value, piece, codec)];
      if (error != 0) continue;  // another action has the same codec here
      error = MeasureError({codec, shape_.seq, piece.cols, columns}, x, value.cols, kMeasureKey)
                  .Relative();
    }
  }
}

void Calibration::MeasureGains() {
  const Plan keep = KeepPlan(whole_, 1);
  float* exact = memory_.first;
  float* other = memory_.second;
  // MeasureErrors left the gradient of micro-batch 0 in `exact`.
  double distances = 0;
  for (int i = 1; i < kVarianceBatches; ++i) {
    std::swap(exact, other);
    Gradient(keep, i, exact, false);
    distances += SumPairs(exact, other, layout_.grad_total).dd;
  }
  variance_ = distances / (2 * (kVarianceBatches - 1));
  for (size_t i = 0; i < open_.size(); ++i) MeasureGainsOf(i, exact, other);
}

// |g' - g|^2 / V on the last micro-batch of MeasureGains, whose exact gradient is in `exact`.
double Calibration::ProbeDistance(const Plan& plan, const float* exact, float* other) {
  Plan probe = plan;
  SetOutliers(probe);
  Gradient(probe, kVarianceBatches - 1, other, false);
  return SumPairs(exact, other, layout_.grad_total).dd / variance_;
}

void Calibration::MeasureGainsOf(size_t index, const float* exact, float* other) {
  const OpenValue& open = open_[index];
  const auto plan_with = [&](const Action& action, bool again) {
    Plan plan = KeepPlan(whole_, 1);
    for (int layer = 0; layer < whole_.layers; ++layer) {
      plan.actions[ValueInLayer(whole_, one_block_, open.value, layer)] = action;
      for (size_t later = index + 1; again && later < open_.size(); ++later) {
        plan.actions[ValueInLayer(whole_, one_block_, open_[later].value, layer)] =
            Action::Recompute();
      }
    }
    return plan;
  };
  // The sum over layers of what the gain multiplies.
  const auto error_of = [&](const Action& action, bool sensitive) {
    double sum = 0;
    for (int layer = 0; layer < whole_.layers; ++layer) {
      const Value& value = whole_.values[ValueInLayer(whole_, one_block_, open.value, layer)];
      for (size_t p = 0; p < value.pieces.size(); ++p) {
        if (open.sensitive[p] != sensitive) continue;
        sum += noise_.error.at(ErrorKey(value, value.pieces[p], action.codecs[p]));
      }
    }
    return sum;
  };
  const auto set = [&](const Action& action, bool sensitive, bool again, double share) {
    const double error = error_of(action, sensitive);
    noise_.gain[NoiseSource(one_block_, open.value, sensitive) + (again ? ".again" : "")] =
        error > 0 ? std::max(0.0, share) / error : 0;
  };
  const bool has_sensitive = std::ranges::count(open.sensitive, true) > 0;
  const bool has_rest = std::ranges::count(open.sensitive, false) > 0;
  const bool has_later = index + 1 < open_.size();
  double fine = 0;
  if (has_sensitive) {
    const Action& bf16 = ActionWith(open, "bf16", "bf16");
    fine = ProbeDistance(plan_with(bf16, false), exact, other);
    set(bf16, true, false, fine);
    if (has_later) {
      const Action& coarse = ActionWith(open, "int8", "int8");
      set(coarse, true, true, ProbeDistance(plan_with(coarse, true), exact, other));
    }
  }
  if (!has_rest) return;
  const Action& action = ActionWith(open, "bf16", "int8");
  const double alone = ProbeDistance(plan_with(action, false), exact, other);
  set(action, false, false, alone - fine);
  const double again =
      has_later ? ProbeDistance(plan_with(action, true), exact, other) : alone - fine;
  set(action, false, true, again);
}

void Calibration::SetOutliers(Plan& plan) const {
  for (size_t v = 0; v < plan.actions.size(); ++v) {
    Action& action = plan.actions[v];
    if (action.kind != Action::Kind::kEncode || !action.outliers.empty()) continue;
    const Value& value = whole_.values[v];
    for (size_t p = 0; p < value.pieces.size(); ++p) {
      const auto found =
          columns_.find(ColumnsKey(value, value.pieces[p], action.codecs[p].outliers));
      HAVERSACK_CHECK(found != columns_.end(), "no columns for {} of {}", value.pieces[p].name,
                      value.name);
      action.outliers.push_back(found->second);
    }
  }
}

Calibration::Check Calibration::CheckPlan(const Plan& plan) {
  Plan checked = plan;
  SetOutliers(checked);
  double first = 0;
  PairSums sums;
  for (int i = 0; i < kCheckBatches; ++i) {
    const int64_t batch = kVarianceBatches + i;
    Gradient(KeepPlan(whole_, 1), batch, memory_.first, i > 0);
    Gradient(checked, batch, memory_.second, i > 0);
    sums = SumPairs(memory_.first, memory_.second, layout_.grad_total);
    if (i == 0) first = sums.dd;
  }
  // n errors that average out sum to n times the square of one, equal errors to n^2 times.
  const double growth = first > 0 ? sums.dd / first : kCheckBatches;
  constexpr double n = kCheckBatches;
  return {.share = sums.dd / (n * variance_),
          .cosine = sums.ab / std::sqrt(sums.aa * sums.bb),
          .bias = std::clamp((growth - n) / (n * n - n), 0.0, 1.0)};
}

}  // namespace haversack
