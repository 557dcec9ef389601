#include "plan/milp.h"

#include <coin/Cbc_C_Interface.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "base/error.h"

namespace haversack {
namespace {

// Columns of the program: the binaries of every option, then the bytes that groups 0..i left
// behind.
class Program {
 public:
  explicit Program(const ChoiceProblem& problem) : problem_(problem), model_(Cbc_newModel()) {
    Cbc_setLogLevel(model_.get(), 0);
    AddColumns();
    AddRows();
  }

  std::optional<std::vector<int>> Solve() {
    Cbc_setMaximumNodes(model_.get(), problem_.max_nodes);
    Cbc_setAllowableFractionGap(model_.get(), problem_.gap);
    Cbc_solve(model_.get());
    const double* solution = Cbc_bestSolution(model_.get());
    if (Cbc_isProvenInfeasible(model_.get()) || solution == nullptr) return std::nullopt;
    std::vector<int> choice;
    for (size_t i = 0; i < problem_.groups.size(); ++i) {
      int chosen = -1;
      for (size_t c = 0; c < problem_.groups[i].size(); ++c) {
        if (solution[first_[i] + static_cast<int>(c)] > 0.5) chosen = static_cast<int>(c);
      }
      if (chosen < 0) return std::nullopt;
      choice.push_back(chosen);
    }
    return choice;
  }

 private:
  struct Deleter {
    void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
  };

  // Bytes are scaled so that the limit is 1000: the solver's tolerances are absolute.
  double Scaled(double bytes) const { return bytes * (1000.0 / problem_.memory); }

  void AddColumns() {
    int column = 0;
    for (const auto& group : problem_.groups) {
      first_.push_back(column);
      for (const ChoiceOption& option : group) {
        Cbc_addCol(model_.get(), "x", 0, 1, option.cost, 1, 0, nullptr, nullptr);
        ++column;
      }
    }
    first_level_ = column;
    for (size_t i = 0; i < problem_.groups.size(); ++i) {
      Cbc_addCol(model_.get(), "s", 0, 1000, 0, 0, 0, nullptr, nullptr);
    }
  }

  // The group's options with `coefficient(option)`, plus the level that groups 0..level left.
  template <typename Coefficient>
  void AddRow(size_t group, Coefficient coefficient, int plus_level, int minus_level, char sense,
              double bound) {
    std::vector<int> columns;
    std::vector<double> values;
    const auto& options = problem_.groups[group];
    for (size_t c = 0; c < options.size(); ++c) {
      columns.push_back(first_[group] + static_cast<int>(c));
      values.push_back(coefficient(options[c]));
    }
    if (plus_level >= 0) {
      columns.push_back(first_level_ + plus_level);
      values.push_back(1);
    }
    if (minus_level >= 0) {
      columns.push_back(first_level_ + minus_level);
      values.push_back(-1);
    }
    Cbc_addRow(model_.get(), "r", static_cast<int>(columns.size()), columns.data(), values.data(),
               sense, bound);
  }

  void AddRows() {
    for (size_t i = 0; i < problem_.groups.size(); ++i) {
      const int before = static_cast<int>(i) - 1;
      AddRow(
          i, [](const ChoiceOption&) { return 1.0; }, -1, -1, 'E', 1);
      AddRow(
          i, [&](const ChoiceOption& o) { return Scaled(o.stored); }, before, static_cast<int>(i),
          'E', 0);
      for (size_t p = 0; p < problem_.groups[i][0].peaks.size(); ++p) {
        AddRow(
            i, [&](const ChoiceOption& o) { return Scaled(o.peaks[p]); }, before, -1, 'L', 1000);
      }
    }
    const int last = first_level_ + static_cast<int>(problem_.groups.size()) - 1;
    const double one = 1;
    Cbc_addRow(model_.get(), "head", 1, &last, &one, 'L', 1000 - Scaled(problem_.final_peak));
    if (problem_.noise_limit) AddNoiseRow();
  }

  void AddNoiseRow() {
    std::vector<int> columns;
    std::vector<double> values;
    for (size_t i = 0; i < problem_.groups.size(); ++i) {
      for (size_t c = 0; c < problem_.groups[i].size(); ++c) {
        columns.push_back(first_[i] + static_cast<int>(c));
        values.push_back(problem_.groups[i][c].noise);
      }
    }
    Cbc_addRow(model_.get(), "noise", static_cast<int>(columns.size()), columns.data(),
               values.data(), 'L', *problem_.noise_limit);
  }

  const ChoiceProblem& problem_;
  std::unique_ptr<Cbc_Model, Deleter> model_;
  std::vector<int> first_;  // column of each group's first option
  int first_level_ = 0;
};

bool WriteAll(int descriptor, const void* data, size_t count) {
  const auto* bytes = static_cast<const char*>(data);
  while (count > 0) {
    const ssize_t written = write(descriptor, bytes, count);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    count -= static_cast<size_t>(written);
  }
  return true;
}

std::vector<int> ReadInts(int descriptor) {
  std::string bytes;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(descriptor, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes.append(buffer, static_cast<size_t>(got));
  }
  std::vector<int> ints(bytes.size() / sizeof(int));
  std::copy_n(bytes.data(), ints.size() * sizeof(int), reinterpret_cast<char*>(ints.data()));
  return ints;
}

}  // namespace

std::optional<std::vector<int>> SolveChoiceHere(const ChoiceProblem& problem) {
  if (problem.final_peak > problem.memory) return std::nullopt;
  return Program(problem).Solve();
}

std::optional<std::vector<int>> SolveChoice(const ChoiceProblem& problem) {
  int ends[2];
  HAVERSACK_CHECK(pipe(ends) == 0, "pipe: errno {}", errno);
  const pid_t child = fork();
  HAVERSACK_CHECK(child >= 0, "fork: errno {}", errno);
  if (child == 0) {
    close(ends[0]);
    bool sent = false;
    try {
      const std::optional<std::vector<int>> choice = SolveChoiceHere(problem);
      const std::vector<int> answer = choice.value_or(std::vector<int>());
      sent = WriteAll(ends[1], answer.data(), answer.size() * sizeof(int));
    } catch (...) {
    }
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::vector<int> answer = ReadInts(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  HAVERSACK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the solver ended with status {}",
                  status);
  if (answer.size() != problem.groups.size()) return std::nullopt;
  return answer;
}

}  // namespace haversack
