// What reading a corpus costs in resident memory, by the kernel's own high-water mark.
#include <malloc.h>

#include <fstream>

#include "base/random.h"
#include "data/dataset.h"
#include "data/test_util.h"

namespace haversack {
namespace {

// A field of /proc/self/status, in bytes.
uint64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  uint64_t kib = 0;
  while (status >> name) {
    if (name == field + ":" && status >> kib) return kib << 10;
    status.ignore(1000, '\n');
  }
  return 0;
}

using Memory = DataTest;

TEST_F(Memory, IsBoundedWhateverTheCorpus) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  const std::string path = (folder_ / "a.jsonl").string();
  const RandomStream random({.seed = 2});
  {
    std::ofstream out(path);
    for (uint64_t i = 0; i < 24000; ++i) {  // 24 MB
      std::string text;
      const uint64_t length = 1 + random.Below(i, 2000);
      while (text.size() < length)
        text += std::to_string(random.Bits(i * 4096 + text.size())) + " ";
      out << (i % 2 ? R"({"prompt":"p","completion":")" : R"({"text":")") << text << "\"}\n";
    }
  }
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // the mark falls to what is resident now
  const uint64_t before = StatusBytes("VmRSS");
  const Encoder encoder = ByteEncoder();
  for (int run = 0; run < 2; ++run) {  // cold, then from the cache
    const Dataset data = Dataset::Open({.files = {path},
                                        .seq = 512,
                                        .cross_document = false,
                                        .seed = 1,
                                        .rules = {.eos_id = kEos, .bos_id = -1},
                                        .model_dir = folder_.string(),
                                        .cache_folder = (folder_ / "cache").string(),
                                        .fallback_folder = folder_.string(),
                                        .log = {},
                                        .poll = {}},
                                       encoder);
    Batch batch;
    for (uint64_t cursor = 0; cursor < data.sequences(); cursor += 64) data.Fill(cursor, 64, batch);
    ASSERT_GT(data.tokens(), 20u << 20);  // as 4-byte ids they alone would pass the bound
  }
  const uint64_t peak = StatusBytes("VmHWM") - before;
  RecordProperty("peak_mib", static_cast<int>(peak >> 20));
  EXPECT_LT(peak, 64u << 20);
}

}  // namespace
}  // namespace haversack
