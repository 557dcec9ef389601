#include "data/byte_source.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace haversack {
namespace {

constexpr uint64_t kInputBytes = 256 << 10;
// Files made with zstd's --long or --ultra ask for windows of 128 MiB and more, which would break
// the promise of bounded memory; up to level 19 they ask for 8 MiB.
constexpr int kLargestWindowLog = 25;

UserError Damaged(const std::string& path, const std::string& reason) {
  return UserError(ExitCode::kUsage, "{}: {}; fetch or compress the file again", path, reason);
}

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(File file) : file_(std::move(file)) {}

  uint64_t Read(char* out, uint64_t count) override {
    const uint64_t got = file_.ReadUpTo(out, count, offset_);
    offset_ += got;
    return got;
  }

 private:
  File file_;
  uint64_t offset_ = 0;
};

// Compressed input in a buffer, refilled from the file.
class InputBuffer {
 public:
  explicit InputBuffer(File file) : file_(std::move(file)), bytes_(kInputBytes) {}

  const std::string& path() const { return file_.path(); }
  // False at the end of the file, with nothing left.
  bool Fill() {
    if (begin_ < end_) return true;
    begin_ = 0;
    end_ = file_.ReadUpTo(bytes_.data(), bytes_.size(), offset_);
    offset_ += end_;
    return end_ > 0;
  }
  unsigned char* data() { return bytes_.data() + begin_; }
  uint64_t size() const { return end_ - begin_; }
  void Consume(uint64_t count) { begin_ += count; }

 private:
  File file_;
  std::vector<unsigned char> bytes_;
  uint64_t begin_ = 0, end_ = 0, offset_ = 0;
};

// One or more gzip members (RFC 1952), zero bytes after them allowed as gzip allows them.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(File file) : input_(std::move(file)) {
    HAVERSACK_CHECK(inflateInit2(&stream_, 15 + 16) == Z_OK, "zlib did not start");
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  uint64_t Read(char* out, uint64_t count) override {
    const auto wanted = static_cast<unsigned>(std::min<uint64_t>(count, 1u << 30));
    stream_.next_out = reinterpret_cast<unsigned char*>(out);
    stream_.avail_out = wanted;
    while (stream_.avail_out > 0 && !done_) Step();
    return wanted - stream_.avail_out;
  }

 private:
  void Step() {
    if (!input_.Fill()) {
      if (inside_ || !any_) throw Damaged(input_.path(), "the gzip data is cut off");
      done_ = true;
      return;
    }
    if (!inside_ && any_ && *input_.data() == 0) return input_.Consume(1);
    inside_ = true;
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<unsigned>(input_.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    input_.Consume(input_.size() - stream_.avail_in);
    if (result == Z_STREAM_END) {
      any_ = true;
      inside_ = false;
      HAVERSACK_CHECK(inflateReset(&stream_) == Z_OK, "zlib did not start again");
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      throw Damaged(input_.path(), fmt::format("the gzip data is damaged ({})",
                                               stream_.msg ? stream_.msg : "unknown reason"));
    }
  }

  InputBuffer input_;
  z_stream stream_{};
  bool inside_ = false;  // a member has begun
  bool any_ = false;     // a member has ended
  bool done_ = false;
};

// One or more Zstandard frames (RFC 8878).
class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(File file) : input_(std::move(file)), stream_(ZSTD_createDStream()) {
    HAVERSACK_CHECK(stream_ != nullptr, "zstd did not start");
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kLargestWindowLog);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  uint64_t Read(char* out, uint64_t count) override {
    ZSTD_outBuffer output = {out, count, 0};
    while (output.pos == 0 && !done_) {
      const bool more = input_.Fill();
      // Zstd may hold output back: an ended file is asked once more before it counts as cut off.
      ZSTD_inBuffer in = {input_.data(), more ? input_.size() : 0, 0};
      if (!more && !inside_ && any_) {
        done_ = true;
        break;
      }
      const size_t result = ZSTD_decompressStream(stream_, &output, &in);
      input_.Consume(in.pos);
      if (ZSTD_isError(result)) Fail(result);
      any_ = true;
      inside_ = result != 0;
      if (!more && output.pos == 0) throw Damaged(input_.path(), "the zstd data is cut off");
    }
    return output.pos;
  }

 private:
  [[noreturn]] void Fail(size_t result) {
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
      throw UserError(
          ExitCode::kUsage,
          "{}: needs a zstd window of more than 32 MiB; compress it again without --long "
          "and --ultra",
          input_.path());
    }
    throw Damaged(input_.path(),
                  fmt::format("the zstd data is damaged ({})", ZSTD_getErrorName(result)));
  }

  InputBuffer input_;
  ZSTD_DStream* stream_;
  bool inside_ = false;  // a frame has begun
  bool any_ = false;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> ByteSource::Open(const std::string& path) {
  File file = File::Open(path);
  if (path.ends_with(".gz")) return std::make_unique<GzipSource>(std::move(file));
  if (path.ends_with(".zst")) return std::make_unique<ZstdSource>(std::move(file));
  return std::make_unique<PlainSource>(std::move(file));
}

std::string WithoutCompression(const std::string& path) {
  for (const char* suffix : {".gz", ".zst"}) {
    if (path.ends_with(suffix)) return path.substr(0, path.size() - std::string(suffix).size());
  }
  return path;
}

}  // namespace haversack
