// One option a group at least cost, under linear limits: the planner's integer program, solved by
// CBC.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace haversack {

// Option c of group i leaves `stored` bytes behind for all later groups and needs each of `peaks`
// above what earlier groups left.
struct ChoiceOption {
  double cost = 0;
  double stored = 0;
  std::vector<double> peaks;  // as many in each option of the problem
  double noise = 0;
};

// minimise    sum cost(i, c_i)
// subject to  sum_{j<i} stored(j, c_j) + peak(i, c_i) <= memory   for every group i and each peak
//             sum_i stored(i, c_i) + final_peak <= memory
//             sum noise(i, c_i) <= noise_limit
struct ChoiceProblem {
  std::vector<std::vector<ChoiceOption>> groups;
  double memory = 0;
  double final_peak = 0;
  std::optional<double> noise_limit;
  // Limits the search by nodes, not seconds: equal problems have equal answers.
  int max_nodes = 2000;
  double gap = 0.002;  // relative; an answer within it is good enough
};

// The option of each group, or nothing when no choice is within the limits. Runs in a child
// process, so that the solver's memory is gone when it returns.
std::optional<std::vector<int>> SolveChoice(const ChoiceProblem& problem);

// The same in this process, for tests and for use in a child.
std::optional<std::vector<int>> SolveChoiceHere(const ChoiceProblem& problem);

}  // namespace haversack
