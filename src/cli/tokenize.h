// `haversack tokenize`: token ids of a file, for scripts and for comparing with other tokenizers.
#pragma once

#include <cstdio>
#include <filesystem>

namespace haversack {

// Writes one JSON array of ids to `out` for each line of `file`, without special tokens added.
// Lines end at \n only, which is not part of them; the last one needs none. Throws UserError.
void Tokenize(const std::filesystem::path& model_dir, const std::filesystem::path& file,
              std::FILE* out);

}  // namespace haversack
