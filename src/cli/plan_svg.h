// Pictures of a plan: budget against predicted speed, and the memory of one micro-batch over time.
#pragma once

#include <string>
#include <vector>

#include "train/run_plan.h"

namespace haversack {

// One memory category over time; drawn on top of those before it.
struct TimelineArea {
  std::string name;  // "weights"
  std::string color;
  std::vector<double> bytes;  // by instruction
};

struct Timeline {
  std::vector<double> seconds;  // of each instruction
  std::vector<TimelineArea> areas;
  double budget = 0;    // bytes
  int forward_end = 0;  // instructions of the forward pass
};

// `state`: weights, gradients and moments; `seconds`: predicted, of each instruction.
Timeline MakeTimeline(const RunPlan& run, const StateBytes& state, std::vector<double> seconds);

std::string TimelineSvg(const Timeline& timeline);
// `frontier`: ascending; the chosen budget is marked.
std::string FrontierSvg(const std::vector<FrontierPoint>& frontier, const RunPlan& run);

}  // namespace haversack
