#include "io/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "io/float_convert.h"

namespace haversack {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors bytes are little-endian");

constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's limit
constexpr uint64_t kBufferBytes = 256 << 10;

// Bits of an element of every type the format defines; nothing for one it does not.
std::optional<uint64_t> ElementBits(std::string_view dtype) {
  static const std::map<std::string_view, uint64_t> bits = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? std::nullopt : std::optional(found->second);
}

// Product of `shape`, or nothing where it passes 2^60 or a dimension is negative.
std::optional<int64_t> CountElements(const std::vector<int64_t>& shape) {
  __int128 count = 1;
  bool zero = false;
  for (const int64_t size : shape) {
    if (size < 0) return std::nullopt;
    if (size == 0) {
      zero = true;
      continue;
    }
    count *= size;
    if (count > (int64_t{1} << 60)) return std::nullopt;
  }
  return zero ? 0 : static_cast<int64_t>(count);
}

uint64_t Unsigned(const nlohmann::json& value, const std::string& where, const char* field) {
  if (!value.is_number_unsigned()) {
    throw UserError(ExitCode::kUsage, "{}: '{}' holds {} where a count is needed", where, field,
                    JsonTypeName(value));
  }
  return value.get<uint64_t>();
}

const nlohmann::json& Field(const nlohmann::json& entry, const std::string& where,
                            const char* field) {
  const auto found = entry.find(field);
  if (found == entry.end()) {
    throw UserError(ExitCode::kUsage, "{}: field '{}' is missing from the header", where, field);
  }
  return *found;
}

// The header's text, with every length checked against the file's.
std::string ReadHeader(const File& file, uint64_t file_size) {
  std::array<char, 128> start{};
  const uint64_t got = file.ReadUpTo(start.data(), start.size(), 0);
  const std::string_view head(start.data(), got);
  if (head.starts_with("version https://git-lfs")) {
    throw UserError(
        ExitCode::kUsage,
        "{}: is a git-lfs pointer, not the weights themselves; fetch them with `git lfs "
        "pull`",
        file.path());
  }
  if (got < 8) {
    throw UserError(ExitCode::kUsage, "{}: {} bytes are too few for a safetensors file",
                    file.path(), file_size);
  }
  uint64_t length;
  std::memcpy(&length, start.data(), sizeof(length));
  if (length > kLongestHeader || length < 2 || (got > 8 && start[8] != '{')) {
    throw UserError(ExitCode::kUsage,
                    "{}: is no safetensors file: it does not begin with a header length and '{{'",
                    file.path());
  }
  if (length > file_size - 8) {
    throw UserError(ExitCode::kUsage,
                    "{}: is cut off inside its header ({} of {} bytes); fetch the file again",
                    file.path(), file_size - 8, length);
  }
  std::string header(length, '\0');
  file.ReadAt(header.data(), length, 8);
  return header;
}

TensorInfo ParseTensor(const std::string& path, const std::string& name,
                       const nlohmann::json& entry, uint64_t data_begin) {
  const std::string where = fmt::format("{}: tensor '{}'", path, OneLine(name));
  if (!entry.is_object()) {
    throw UserError(ExitCode::kUsage, "{}: is {} in the header where an object is needed", where,
                    JsonTypeName(entry));
  }
  TensorInfo info;
  info.name = name;
  const nlohmann::json& dtype = Field(entry, where, "dtype");
  if (!dtype.is_string()) {
    throw UserError(ExitCode::kUsage, "{}: 'dtype' is {} where a string is needed", where,
                    JsonTypeName(dtype));
  }
  info.dtype = dtype.get<std::string>();
  const nlohmann::json& shape = Field(entry, where, "shape");
  const nlohmann::json& offsets = Field(entry, where, "data_offsets");
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    throw UserError(ExitCode::kUsage,
                    "{}: 'shape' must be an array and 'data_offsets' an array of two", where);
  }
  for (const nlohmann::json& size : shape) {
    const uint64_t value = Unsigned(size, where, "shape");
    if (value > (uint64_t{1} << 60)) {
      throw UserError(ExitCode::kUsage, "{}: 'shape' holds {}, more than any file", where, value);
    }
    info.shape.push_back(static_cast<int64_t>(value));
  }
  const uint64_t begin = Unsigned(offsets[0], where, "data_offsets");
  const uint64_t end = Unsigned(offsets[1], where, "data_offsets");
  constexpr uint64_t kFar = uint64_t{1} << 62;
  if (begin > end || end > kFar) {
    throw UserError(ExitCode::kUsage, "{}: 'data_offsets' [{}, {}] are no range", where, begin,
                    end);
  }
  info.begin = data_begin + begin;
  info.end = data_begin + end;
  return info;
}

void CheckTensor(const std::string& path, const TensorInfo& info, uint64_t file_size) {
  const std::string where = fmt::format("{}: tensor '{}'", path, OneLine(info.name));
  const std::optional<int64_t> elements = CountElements(info.shape);
  if (!elements) {
    throw UserError(ExitCode::kUsage, "{}: its shape {} has more elements than any file", where,
                    ShapeText(info.shape));
  }
  if (info.end > file_size) {
    throw UserError(ExitCode::kUsage,
                    "{}: ends at byte {}, but the file has only {}: it is cut off; fetch it again",
                    where, info.end, file_size);
  }
  const std::optional<uint64_t> bits = ElementBits(info.dtype);
  if (bits) {
    const auto needed = (static_cast<unsigned __int128>(*elements) * *bits + 7) / 8;
    if (needed != info.end - info.begin) {
      throw UserError(ExitCode::kUsage, "{}: {} of shape {} does not take the {} bytes it is given",
                      where, OneLine(info.dtype), ShapeText(info.shape), info.end - info.begin);
    }
  }
}

// Like the reference implementation: the tensors cover the data without overlap, hole or rest.
void CheckLayout(const std::string& path, const std::map<std::string, TensorInfo>& tensors,
                 uint64_t data_begin, uint64_t file_size) {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : tensors) {
    if (info.begin < info.end) order.push_back(&info);  // one without bytes may lie anywhere
  }
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->begin < b->begin; });
  uint64_t reached = data_begin;
  const TensorInfo* before = nullptr;
  for (const TensorInfo* info : order) {
    if (info->begin < reached) {
      throw UserError(ExitCode::kUsage, "{}: tensors '{}' and '{}' overlap", path,
                      OneLine(before->name), OneLine(info->name));
    }
    if (info->begin > reached) {
      throw UserError(ExitCode::kUsage, "{}: {} bytes before tensor '{}' belong to no tensor", path,
                      info->begin - reached, OneLine(info->name));
    }
    reached = info->end;
    before = info;
  }
  if (reached != file_size) {
    throw UserError(ExitCode::kUsage, "{}: {} bytes after the last tensor belong to no tensor",
                    path, file_size - reached);
  }
}

void ConvertToF32(StoredType type, const uint16_t* stored, int64_t count, float* out) {
  if (type == StoredType::kBF16) {
    for (int64_t i = 0; i < count; ++i) out[i] = F32FromBf16(stored[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = F32FromF16(stored[i]);
  }
}

}  // namespace

StoredType StoredTypeOf(std::string_view dtype) {
  if (dtype == "F32") return StoredType::kF32;
  if (dtype == "F16") return StoredType::kF16;
  if (dtype == "BF16") return StoredType::kBF16;
  return StoredType::kOther;
}

uint64_t ElementBytes(StoredType type) {
  HAVERSACK_CHECK(type != StoredType::kOther, "an element type of unknown size");
  return type == StoredType::kF32 ? 4 : 2;
}

int64_t TensorInfo::elements() const {
  const std::optional<int64_t> count = CountElements(shape);
  HAVERSACK_CHECK(count.has_value(), "tensor {} of shape {}", name, ShapeText(shape));
  return *count;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  result.file_ = File::Open(path);
  const uint64_t file_size = result.file_.Size();
  const std::string header_text = ReadHeader(result.file_, file_size);
  const nlohmann::json header = ParseJson(header_text, path + ": header");
  if (!header.is_object()) {
    throw UserError(ExitCode::kUsage, "{}: the header is {} where an object is needed", path,
                    JsonTypeName(header));
  }
  const uint64_t data_begin = 8 + header_text.size();
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      const TensorInfo info = ParseTensor(path, name, entry, data_begin);
      CheckTensor(path, info, file_size);
      result.tensors_.emplace(name, info);
      continue;
    }
    if (!entry.is_object()) {
      throw UserError(ExitCode::kUsage, "{}: '__metadata__' is {} where an object is needed", path,
                      JsonTypeName(entry));
    }
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        throw UserError(ExitCode::kUsage, "{}: '__metadata__' field '{}' is {}, not a string", path,
                        OneLine(key), JsonTypeName(value));
      }
      result.metadata_.emplace(key, value.get<std::string>());
    }
  }
  CheckLayout(path, result.tensors_, data_begin, file_size);
  return result;
}

void SafetensorsFile::ReadAsF32(const TensorInfo& info, float* out) const {
  ReadRangeAsF32(info, 0, info.elements(), out);
}

void SafetensorsFile::ReadRangeAsF32(const TensorInfo& info, int64_t begin, int64_t end,
                                     float* out) const {
  HAVERSACK_CHECK(0 <= begin && begin <= end && end <= info.elements(),
                  "elements {} to {} of {} {}", begin, end, info.name, ShapeText(info.shape));
  const StoredType type = StoredTypeOf(info.dtype);
  if (type == StoredType::kOther) {
    throw UserError(ExitCode::kUsage,
                    "{}: tensor '{}' is stored as {}; supported are F32, F16 and BF16", path(),
                    OneLine(info.name), OneLine(info.dtype));
  }
  const uint64_t size = ElementBytes(type);
  const uint64_t start = info.begin + static_cast<uint64_t>(begin) * size;
  if (type == StoredType::kF32) {
    file_.ReadAt(out, static_cast<uint64_t>(end - begin) * size, start);
    return;
  }
  const auto piece = static_cast<int64_t>(kBufferBytes / size);
  std::vector<uint16_t> buffer(static_cast<size_t>(std::min(piece, end - begin)));
  for (int64_t done = 0; done < end - begin; done += piece) {
    const int64_t count = std::min(piece, end - begin - done);
    file_.ReadAt(buffer.data(), static_cast<uint64_t>(count) * size,
                 start + static_cast<uint64_t>(done) * size);
    ConvertToF32(type, buffer.data(), count, out + done);
  }
}

void SafetensorsFile::ReadStored(const TensorInfo& info, void* out) const {
  file_.ReadAt(out, info.end - info.begin, info.begin);
}

SafetensorsWriter SafetensorsWriter::Open(const std::string& path,
                                          const std::vector<TensorSpec>& tensors,
                                          const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const TensorSpec& spec : tensors) {
    const uint64_t bits = ElementBits(spec.dtype).value_or(0);
    HAVERSACK_CHECK(bits > 0 && bits % 8 == 0, "tensor {} as {}", spec.name, spec.dtype);
    TensorInfo info{.name = spec.name, .dtype = spec.dtype, .shape = spec.shape, .begin = offset};
    info.end = offset += static_cast<uint64_t>(info.elements()) * bits / 8;
    header[spec.name] = {
        {"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {info.begin, info.end}}};
    const bool added = writer.slots_.emplace(spec.name, Slot{.info = info}).second;
    HAVERSACK_CHECK(added && spec.name != "__metadata__", "tensor {} twice", spec.name);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors begin at a multiple of 8
  const uint64_t data_begin = 8 + text.size();
  for (auto& [name, slot] : writer.slots_) {
    slot.info.begin += data_begin;
    slot.info.end += data_begin;
  }
  writer.file_ = File::Create(path);
  writer.file_.Reserve(data_begin + offset);
  const uint64_t length = text.size();
  writer.file_.WriteAt(&length, sizeof(length), 0);
  writer.file_.WriteAt(text.data(), text.size(), 8);
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!file_.is_open()) return;
  std::remove(file_.path().c_str());
}

void SafetensorsWriter::Write(const std::string& name, const float* data) {
  const auto found = slots_.find(name);
  HAVERSACK_CHECK(found != slots_.end(), "tensor {} is not of this file", name);
  WriteRange(name, 0, found->second.info.elements(), data);
}

void SafetensorsWriter::WriteRange(const std::string& name, int64_t begin, int64_t count,
                                   const float* data) {
  const auto found = slots_.find(name);
  HAVERSACK_CHECK(found != slots_.end(), "tensor {} is not of this file", name);
  Slot& slot = found->second;
  HAVERSACK_CHECK(0 <= begin && 0 <= count && begin + count <= slot.info.elements(),
                  "elements {} + {} of {} {}", begin, count, name, ShapeText(slot.info.shape));
  slot.written += count;
  const StoredType type = StoredTypeOf(slot.info.dtype);
  const uint64_t size = ElementBytes(type);
  const uint64_t start = slot.info.begin + static_cast<uint64_t>(begin) * size;
  if (type == StoredType::kF32) {
    file_.WriteAt(data, static_cast<uint64_t>(count) * size, start);
    return;
  }
  const auto piece = static_cast<int64_t>(kBufferBytes / size);
  std::vector<uint16_t> buffer(static_cast<size_t>(std::min(piece, count)));
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t part = std::min(piece, count - done);
    for (int64_t i = 0; i < part; ++i) {
      const float value = data[done + i];
      buffer[static_cast<size_t>(i)] =
          type == StoredType::kBF16 ? Bf16FromF32(value) : F16FromF32(value);
    }
    file_.WriteAt(buffer.data(), static_cast<uint64_t>(part) * size,
                  start + static_cast<uint64_t>(done) * size);
  }
}

void SafetensorsWriter::WriteStored(const std::string& name, const void* data) {
  const auto found = slots_.find(name);
  HAVERSACK_CHECK(found != slots_.end(), "tensor {} is not of this file", name);
  Slot& slot = found->second;
  file_.WriteAt(data, slot.info.end - slot.info.begin, slot.info.begin);
  slot.written += slot.info.elements();
}

void SafetensorsWriter::Finish() {
  for (const auto& [name, slot] : slots_) {
    HAVERSACK_CHECK(slot.written == slot.info.elements(), "{} of {} elements of {} written",
                    slot.written, slot.info.elements(), name);
  }
  file_.Sync();
  file_.Close();
}

}  // namespace haversack
