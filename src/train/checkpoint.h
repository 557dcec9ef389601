// Checkpoints: everything a run needs to go on as if it had never stopped, in one directory each.
//
//   OUT/checkpoints/step-00000120/state.json         step, cursor, plan, options, counters
//                                 state.safetensors  weights and moments, as they lie in memory
//                                 DONE               written last: size and XXH64 of each of them
//
// A checkpoint is written beside its final name, synced, and renamed when whole; a directory
// without a DONE that agrees with its files does not exist as far as a resumed run is concerned.
// Only directories named as above, and "writing-" ones that a killed run left, are ever removed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exec/model_state.h"
#include "graph/graph.h"

namespace haversack {

// How far a checkpoint is held against its DONE: content means reading all of it.
enum class Verify { kSizes, kContent };

class CheckpointStore {
 public:
  // `folder`: OUT/checkpoints; need not exist.
  CheckpointStore(std::string folder, const Graph& graph, const ParamLayout& layout,
                  const MomentLayout& moments);

  // Bytes of one checkpoint, as nearly as can be known ahead.
  int64_t BytesEach() const;

  // Saves `info` (which holds "step") and the state, as the best checkpoint if `best`. At most
  // `keep` complete checkpoints remain, the best aside: the highest steps. The oldest go before the
  // new one is written, which bounds the space, but never the newest and never the best so far: a
  // full disk leaves the newest complete one intact. Throws UserError: exit 4 naming a tensor that
  // is not finite, exit 5 where the disk fails.
  void Save(const nlohmann::json& info, const ModelState& state, int64_t keep, bool best);

  // Save in steps, for a run whose ranks write files of their own beside the shared ones: makes
  // room, and the folder (Writing) for them; then writes the shared files and puts the checkpoint
  // in place. `files`: names that must be there by then. DONE vouches for all that is.
  void Begin(int64_t step, const ModelState& state, int64_t keep);
  std::string Writing(int64_t step) const;
  void Finish(const nlohmann::json& info, const ModelState& state, int64_t keep, bool best,
              const std::vector<std::string>& files);
  void Discard(int64_t step) const;

  // Bytes of what is written beside the shared files.
  void set_rank_bytes(int64_t bytes) { rank_bytes_ = bytes; }
  // The folder of the checkpoint of `step`.
  std::string Path(int64_t step) const;

  // Bytes that Save removes before it writes.
  int64_t ReclaimedBytes(int64_t keep) const;
  // Bytes of all checkpoints that are there.
  int64_t TotalBytes() const;

  // The newest complete checkpoint's info; `log` hears of those that are passed over. One whose
  // content is found damaged counts as incomplete from then on.
  std::optional<nlohmann::json> FindNewest(Verify verify,
                                           const std::function<void(const std::string&)>& log);
  // Reads the weights and moments of the checkpoint of `step`.
  void LoadState(int64_t step, const ModelState& state) const;

  // The checkpoint that is kept whatever its age.
  void set_best(std::optional<int64_t> step) { best_ = step; }

 private:
  // Steps of all directories named like a checkpoint, ascending.
  std::vector<int64_t> Steps() const;
  // Why the checkpoint cannot be used; empty: it is complete.
  std::string WhyIncomplete(int64_t step, Verify verify = Verify::kSizes) const;
  // What may go when `keep` complete checkpoints and the best are to stay: older ones, incomplete
  // ones that are older than a complete one, and unfinished writes.
  std::vector<std::string> Removable(int64_t keep) const;
  void Rotate(int64_t keep) const;
  void CheckFinite(const ModelState& state) const;
  void Write(const std::string& folder, const nlohmann::json& info, const ModelState& state) const;

  std::string folder_;
  const Graph& graph_;
  const ParamLayout& layout_;
  const MomentLayout& moments_;
  std::optional<int64_t> best_;
  std::map<int64_t, std::string> damaged_;  // steps, and what is wrong with them
  int64_t rank_bytes_ = 0;
};

}  // namespace haversack
