#include <zlib.h>
#include <zstd.h>

#include "data/byte_source.h"
#include "data/corpus_files.h"
#include "data/corpus_reader.h"
#include "data/record_reader.h"
#include "data/test_util.h"

namespace haversack {
namespace {

using Readers = DataTest;

std::string Gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<unsigned char*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<unsigned>(text.size());
  stream.next_out = reinterpret_cast<unsigned char*>(out.data());
  stream.avail_out = static_cast<unsigned>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(std::string_view text, int window_log = 0) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) {  // streamed, so that the frame states the window and not its content's size
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_outBuffer output = {out.data(), out.size(), 0};
    ZSTD_inBuffer input = {text.data(), text.size(), 0};
    ZSTD_compressStream2(context, &output, &input, ZSTD_e_flush);
    ZSTD_compressStream2(context, &output, &input, ZSTD_e_end);
    out.resize(output.pos);
  } else {
    out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  }
  ZSTD_freeCCtx(context);
  return out;
}

std::string ReadAll(const std::string& path, size_t piece = 1000) {
  const auto source = ByteSource::Open(path);
  std::string text, buffer(piece, '\0');
  while (const uint64_t got = source->Read(buffer.data(), buffer.size()))
    text.append(buffer, 0, got);
  return text;
}

std::string LongText() {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += std::to_string(i * 7919) + (i % 9 ? " " : "\n");
  return text;
}

TEST_F(Readers, CompressedFilesGiveTheirTextWhateverTheirMembers) {
  const std::string text = LongText();
  const std::string half = text.substr(0, text.size() / 2), rest = text.substr(text.size() / 2);
  EXPECT_EQ(ReadAll(Put("a.txt", text)), text);
  for (const size_t piece : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    EXPECT_EQ(ReadAll(Put("a.txt.gz", Gzip(text)), piece), text);
    EXPECT_EQ(ReadAll(Put("a.txt.zst", Zstd(text)), piece), text);
  }
  EXPECT_EQ(ReadAll(Put("b.txt.gz", Gzip(half) + Gzip("") + Gzip(rest))), text);
  EXPECT_EQ(ReadAll(Put("c.txt.gz", Gzip(half) + std::string(700, '\0'))), half);
  EXPECT_EQ(ReadAll(Put("b.txt.zst", Zstd(half) + Zstd("") + Zstd(rest))), text);
  EXPECT_EQ(ReadAll(Put("e.gz", Gzip(""))), "");
  EXPECT_EQ(ReadAll(Put("e.zst", Zstd(""))), "");
}

TEST_F(Readers, DamagedCompressionIsRefusedByName) {
  const std::string text = LongText();
  for (const auto& [suffix, bytes] :
       {std::pair{std::string(".gz"), Gzip(text)}, std::pair{std::string(".zst"), Zstd(text)}}) {
    const std::string name = "d.txt" + suffix;
    for (const size_t cut : {size_t{0}, size_t{3}, bytes.size() / 2, bytes.size() - 1}) {
      const std::string path = Put(name, bytes.substr(0, cut));
      ExpectRefused([&] { ReadAll(path); }, {path, "cut off"});
    }
    std::string flipped = bytes;
    flipped[bytes.size() / 2] ^= 0x55;
    ExpectRefused([&] { ReadAll(Put(name, flipped)); }, {name, "damaged"});
    const std::string longer = bytes + "rest";
    ExpectRefused([&] { ReadAll(Put(name, longer)); }, {name});
    ExpectRefused([&] { ReadAll(Put(name, "plain text, really")); }, {name, "damaged"});
  }
  ExpectRefused([&] { ReadAll(Put("w.zst", Zstd(text, 27))); }, {"w.zst", "window"});
}

std::vector<std::pair<std::string, uint64_t>> Records(const std::string& path) {
  RecordReader reader(path);
  std::vector<std::pair<std::string, uint64_t>> records;
  std::string record;
  uint64_t line;
  while (reader.Next(record, line)) records.emplace_back(record, line);
  return records;
}

TEST_F(Readers, LinesEndAtLineFeedsAloneAndBlankOnesCount) {
  const std::string path =
      Put("a.jsonl",
          "\xEF\xBB\xBF{\"text\":\"one\"}\r\n\r\n   \n{\"text\":\"two\xE2\x80\xA8three\xC2\x85"
          "four\"}\n{\"text\":\"five\\u0000six\"}\n{\"text\":\"seven\"}");
  const std::vector<std::pair<std::string, uint64_t>> expected = {
      {R"({"text":"one"})", 1},
      {"{\"text\":\"two\xE2\x80\xA8three\xC2\x85"
       "four\"}",
       4},
      {R"({"text":"five\u0000six"})", 5},
      {R"({"text":"seven"})", 6}};
  EXPECT_EQ(Records(path), expected);
  EXPECT_TRUE(Records(Put("b.jsonl", "")).empty());
  EXPECT_TRUE(Records(Put("b.jsonl", "\n \r\n\t\n")).empty());
  EXPECT_TRUE(Records(Put("b.jsonl", "\xEF\xBB\xBF")).empty());
  ExpectRefused([&] { Records(Put("c.jsonl", std::string("\xff\xfe{\0", 4))); },
                {"c.jsonl:1", "UTF-16"});
}

TEST_F(Readers, AnArrayGivesItsElementsWithTheirLines) {
  const std::vector<std::pair<std::string, uint64_t>> expected = {
      {"{\n  \"text\": \"a, ] \\\" [\"\n }", 2}, {R"({"text": ["x", {"y": 1}]})", 5}, {"3", 5}};
  EXPECT_EQ(Records(Put("a.json",
                        "[\n {\n  \"text\": \"a, ] \\\" [\"\n },\n"
                        " {\"text\": [\"x\", {\"y\": 1}]} , 3\n]\n")),
            expected);
  EXPECT_TRUE(Records(Put("a.json", " [ ] ")).empty());
  for (const char* bad : {"[{}", "[{},]", "[,{}]", "[{}] {}", "[{}]]", "[\"a"}) {
    ExpectRefused([&] { Records(Put("bad.json", bad)); }, {"bad.json:1"});
  }
}

TEST_F(Readers, ARecordBeyondTheLimitIsNamed) {
  const std::string path =
      Put("a.jsonl", "{}\n{\"text\":\"" + std::string(kLongestRecord, 'x') + "\"}\n");
  ExpectRefused([&] { Records(path); }, {path + ":2", "16.0 MiB"});
}

TEST_F(Readers, FoldersAreSortedAndHoldOnlyData) {
  for (const char* name : {"d/b.txt", "d/a.jsonl.gz", "d/sub/c.json", "d/z.ndjson.zst",
                           "d/README.md", "d/.hidden.txt", "d/.git/x.txt", "d/a.bin"}) {
    Put(name, "x");
  }
  std::vector<std::string> names;
  for (const CorpusFile& file : ListCorpusFiles({(folder_ / "d").string()})) {
    names.push_back(std::filesystem::path(file.path).lexically_relative(folder_ / "d").string() +
                    (file.kind == FileKind::kRecords ? " records" : " text"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a.jsonl.gz records", "b.txt text",
                                             "sub/c.json records", "z.ndjson.zst records"}));
  EXPECT_EQ(ListCorpusFiles({Put("any.name", "x")})[0].kind, FileKind::kText);
  std::filesystem::create_directories(folder_ / "empty");
  ExpectRefused([&] { ListCorpusFiles({(folder_ / "empty").string()}); }, {"empty", ".jsonl"});
  ExpectRefused([&] { ListCorpusFiles({"/dev/zero"}); }, {"/dev/zero", "regular"});
  ExpectRefused([] { ListCorpusFiles({}); }, {"no data"});
}

TEST_F(Readers, TheContentHashFollowsBytesAndNotNames) {
  const auto hash = [](const std::string& path) {
    return HashCorpusFiles(ListCorpusFiles({path}));
  };
  const std::string first = hash(Put("a.txt", "text"));
  EXPECT_EQ(hash(Put("b.txt", "text")), first);
  EXPECT_NE(hash(Put("b.txt", "texT")), first);
  EXPECT_NE(hash(Put("b.jsonl", "text")), first);
  EXPECT_NE(hash(Put("b.txt.gz", "text")), first);
  ExpectRefused([&] { hash((folder_ / "none.txt").string()); }, {"none.txt", "no such file"});
}

std::vector<CorpusPiece> Pieces(const std::string& path, const Encoder& encoder,
                                size_t* notes = nullptr) {
  const std::vector<CorpusFile> files = ListCorpusFiles({path});
  CorpusReader reader(files, encoder);
  std::vector<CorpusPiece> pieces;
  CorpusPiece piece;
  while (reader.Next(piece)) pieces.push_back(piece);
  if (notes) *notes = reader.notes().size();
  return pieces;
}

TEST_F(Readers, ATextFileIsOneDocumentInPiecesThatEndAtSafeCuts) {
  const std::string text = LongText();
  const std::vector<CorpusPiece> pieces = Pieces(Put("a.txt", text), ByteEncoder());
  ASSERT_GT(pieces.size(), 2u);
  std::string joined;
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].first, i == 0);
    EXPECT_EQ(pieces[i].last, i + 1 == pieces.size());
    EXPECT_EQ(pieces[i].line,
              1u + static_cast<uint64_t>(std::count(joined.begin(), joined.end(), '\n')));
    EXPECT_TRUE(pieces[i].last || pieces[i].bytes.ends_with(' '));
    joined += pieces[i].bytes;
  }
  EXPECT_EQ(joined, text);
}

TEST_F(Readers, TextWithoutASafeCutIsReadWholeUpToALimitAndThenCutWithANote) {
  std::string text;
  for (int i = 0; i < 1000000; ++i) text += "\xE6\xBC\xA2";
  size_t notes = 0;
  EXPECT_EQ(Pieces(Put("a.txt", text), ByteEncoder(), &notes).size(), 1u);
  EXPECT_EQ(notes, 0u);
  while (text.size() < (20u << 20)) text += text;
  const std::vector<CorpusPiece> pieces = Pieces(Put("a.txt", text), ByteEncoder(), &notes);
  EXPECT_GE(notes, 1u);
  for (const CorpusPiece& piece : pieces) EXPECT_EQ(piece.bytes.size() % 3, 0u);
}

TEST_F(Readers, FilesWithoutContentAreRefused) {
  for (const char* name : {"e.txt", "e.jsonl", "e.json"}) {
    for (const char* bytes : {"", "\n", " \r\n \t\n"}) {
      ExpectRefused([&] { Pieces(Put(name, bytes), ByteEncoder()); }, {name, "empty or blank"});
    }
  }
  ExpectRefused([&] { Pieces(Put("e.json", "[]"), ByteEncoder()); }, {"e.json", "empty"});
}

}  // namespace
}  // namespace haversack
