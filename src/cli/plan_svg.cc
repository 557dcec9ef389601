#include "cli/plan_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace haversack {
namespace {

constexpr double kWidth = 1040, kHeight = 480;
constexpr double kLeft = 90, kRight = 310, kTop = 50, kBottom = 60;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

double X(double share) { return kLeft + share * kPlotWidth; }
double Y(double share) { return kHeight - kBottom - share * kPlotHeight; }

std::string Text(double x, double y, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, text);
}

std::string Line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, style);
}

std::string Open(const std::string& title) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" font-family=\"sans-serif\" font-size=\"13\">\n"
             "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
             kWidth, kHeight) +
         Text(kLeft, 28, title, "font-size=\"16\" font-weight=\"bold\"");
}

// 1, 2 or 5 times a power of ten, so that some five steps make up `most`.
double RoundStep(double most) {
  const double raw = most / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power) return factor * power;
  }
  return 10 * power;
}

std::string HorizontalRules(double least, double most, double step, double unit,
                            const char* suffix) {
  std::string svg;
  for (double v = std::ceil(least / step) * step; v <= most; v += step) {
    const double y = Y((v - least) / (most - least));
    svg += Line(kLeft, y, kLeft + kPlotWidth, y, "stroke=\"#ddd\"");
    svg += Text(kLeft - 8, y + 4, fmt::format("{:.3g}{}", v / unit, suffix),
                "text-anchor=\"end\" fill=\"#555\"");
  }
  return svg;
}

}  // namespace

Timeline MakeTimeline(const RunPlan& run, const StateBytes& state, std::vector<double> seconds) {
  const Schedule& schedule = run.chosen.schedule;
  const std::vector<LiveBytes> live = SimulateMemory(schedule);
  const auto constant = [&](int64_t bytes) {
    return std::vector<double>(live.size(), static_cast<double>(bytes));
  };
  Timeline timeline{.seconds = std::move(seconds),
                    .areas = {{"libraries, tables, reserve", "#9a9a9a",
                               constant(run.memory.process + run.memory.reserve)},
                              {"weights", "#4e79a7", constant(state.weights)},
                              {"gradients", "#76b7b2", constant(state.gradients)},
                              {"moments", "#59a14f", constant(state.moments)}},
                    .budget = static_cast<double>(run.memory.budget)};
  TimelineArea kept{"kept", "#edc948", {}};
  TimelineArea encoded{"kept, encoded", "#f28e2b", {}};
  TimelineArea transient{"transient", "#e15759", {}};
  for (const LiveBytes& bytes : live) {
    const int64_t packed = bytes.by_kind[static_cast<size_t>(BufferKind::kEncoded)];
    const int64_t plain = std::min(bytes.kept, bytes.by_kind[0]);
    kept.bytes.push_back(static_cast<double>(plain));
    encoded.bytes.push_back(static_cast<double>(packed));
    transient.bytes.push_back(static_cast<double>(bytes.total - plain - packed));
  }
  timeline.areas.insert(timeline.areas.end(), {kept, encoded, transient});
  while (timeline.forward_end < static_cast<int>(schedule.instrs.size()) &&
         schedule.instrs[timeline.forward_end].kind != InstrKind::kBackward) {
    ++timeline.forward_end;
  }
  return timeline;
}

std::string TimelineSvg(const Timeline& timeline) {
  std::vector<double> ends;
  double total = 0;
  for (const double seconds : timeline.seconds) ends.push_back(total += seconds);
  total = std::max(total, 1e-9);
  const double most = timeline.budget * 1.04;
  std::string svg = Open("Predicted memory over one micro-batch");
  svg += HorizontalRules(0, most, RoundStep(most / (1 << 30)) * (1 << 30), 1 << 30, " GiB");
  std::vector<double> base(ends.size(), 0);
  double label_y = kHeight;
  for (const TimelineArea& area : timeline.areas) {
    std::string points;
    for (size_t i = 0; i < ends.size(); ++i) {
      const double begin = i == 0 ? 0 : ends[i - 1], y = Y((base[i] + area.bytes[i]) / most);
      points +=
          fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", X(begin / total), y, X(ends[i] / total), y);
    }
    for (size_t i = ends.size(); i-- > 0;) {
      const double begin = i == 0 ? 0 : ends[i - 1], y = Y(base[i] / most);
      points +=
          fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", X(ends[i] / total), y, X(begin / total), y);
    }
    svg += fmt::format("<polygon points=\"{}\" fill=\"{}\"/>\n", points, area.color);
    const double peak = *std::ranges::max_element(area.bytes);
    // Labels stand where their area lies at the end of the forward pass, or just above the last
    // one.
    const auto at = static_cast<size_t>(std::max(0, timeline.forward_end - 1));
    const double middle = Y((base[at] + area.bytes[at] / 2) / most) + 4;
    label_y = std::min(middle, label_y - 17);
    svg += Text(kLeft + kPlotWidth + 12, label_y,
                fmt::format("{}: {}{}", area.name, area.bytes.front() == peak ? "" : "up to ",
                            FormatBytes(static_cast<int64_t>(peak))),
                fmt::format("fill=\"{}\" font-weight=\"bold\"", area.color).c_str());
    for (size_t i = 0; i < ends.size(); ++i) base[i] += area.bytes[i];
  }
  const double budget_y = Y(timeline.budget / most);
  svg += Line(kLeft, budget_y, kLeft + kPlotWidth, budget_y,
              "stroke=\"black\" stroke-dasharray=\"6 4\"");
  svg +=
      Text(kLeft + 6, budget_y - 6, "budget " + FormatBytes(static_cast<int64_t>(timeline.budget)));
  const double turn = timeline.forward_end > 0 ? ends[timeline.forward_end - 1] / total : 0;
  svg +=
      Line(X(turn), kTop, X(turn), kHeight - kBottom, "stroke=\"#555\" stroke-dasharray=\"2 3\"");
  svg += Text(X(turn / 2), kHeight - kBottom + 20, "forward and loss", "text-anchor=\"middle\"");
  svg += Text(X((1 + turn) / 2), kHeight - kBottom + 20, "backward", "text-anchor=\"middle\"");
  svg += Text(X(1), kHeight - kBottom + 42, fmt::format("{:.2f} s", total), "text-anchor=\"end\"");
  return svg + "</svg>\n";
}

std::string FrontierSvg(const std::vector<FrontierPoint>& frontier, const RunPlan& run) {
  std::string svg = Open("Memory budget against predicted speed");
  if (frontier.empty()) return svg + "</svg>\n";
  const auto first = static_cast<double>(frontier.front().budget_bytes);
  const double last = std::max(static_cast<double>(frontier.back().budget_bytes), first + 1);
  double fastest = 0;
  for (const FrontierPoint& point : frontier) fastest = std::max(fastest, point.tokens_per_s);
  const double most = std::max(fastest * 1.1, 1e-9);
  const auto x_of = [&](double bytes) { return X((bytes - first) / (last - first)); };
  svg += HorizontalRules(0, most, RoundStep(most), 1, "");
  svg += Text(18, kTop + kPlotHeight / 2, "tokens/s");
  std::string points;
  for (const FrontierPoint& point : frontier) {
    points += fmt::format("{:.1f},{:.1f} ", x_of(static_cast<double>(point.budget_bytes)),
                          Y(point.tokens_per_s / most));
  }
  svg += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"#4e79a7\" stroke-width=\"2\"/>\n", points);
  for (const FrontierPoint& point : frontier) {
    const double x = x_of(static_cast<double>(point.budget_bytes)),
                 y = Y(point.tokens_per_s / most);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#4e79a7\"/>\n", x, y);
    svg += Text(x, y - 10, fmt::format("{:.0f}", point.tokens_per_s), "text-anchor=\"middle\"");
  }
  for (const FrontierPoint* point :
       {&frontier.front(), &frontier[frontier.size() / 2], &frontier.back()}) {
    svg += Text(x_of(static_cast<double>(point->budget_bytes)), kHeight - kBottom + 20,
                FormatBytes(point->budget_bytes), "text-anchor=\"middle\" fill=\"#555\"");
  }
  svg +=
      Text(X(0.5), kHeight - kBottom + 42, "budget of the whole process", "text-anchor=\"middle\"");
  const auto budget = static_cast<double>(run.memory.budget);
  const double x = std::clamp(x_of(budget), X(0), X(1)), y = Y(run.predicted_tokens_per_s / most);
  svg += fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"7\" fill=\"none\" stroke=\"#e15759\" "
      "stroke-width=\"2\"/>\n",
      x, y);
  svg += Text(kLeft + kPlotWidth + 16, y + 4,
              fmt::format("this run: {:.0f} tokens/s", run.predicted_tokens_per_s),
              "fill=\"#e15759\" font-weight=\"bold\"");
  svg += Text(kLeft + kPlotWidth + 16, y + 22,
              fmt::format("within {}", FormatBytes(run.memory.budget)), "fill=\"#e15759\"");
  return svg + "</svg>\n";
}

}  // namespace haversack
