#include "kernels/dynamic_code.h"

#include <cmath>
#include <limits>

namespace haversack {
namespace {

constexpr int kDecades = 7;

DynamicCode MakeCode(bool is_signed) {
  DynamicCode code;
  code.is_signed = is_signed;
  code.count = 1;  // zero
  for (int i = 0; i < kDecades; ++i) {
    const int bins = 1 << (is_signed ? i : i + 1);
    const double scale = std::pow(10.0, i - (kDecades - 1));
    code.slope[i] = static_cast<float>(bins / (0.9 * scale));
    code.offset[i] = static_cast<float>(code.count - bins / 9.0);
    for (int bin = 0; bin < bins; ++bin) {
      code.magnitude[code.count++] = static_cast<float>(scale * (0.1 + 0.9 * (bin + 0.5) / bins));
    }
  }
  code.magnitude[code.count++] = 1;
  code.threshold[0] = 0;
  for (int k = 1; k < code.count; ++k) {
    code.threshold[k] =
        static_cast<float>((double{code.magnitude[k - 1]} + double{code.magnitude[k]}) / 2);
  }
  code.threshold[code.count] = std::numeric_limits<float>::infinity();
  for (int byte = 0; byte < 256; ++byte) {
    const int k = is_signed ? byte - 127 : byte;
    code.value[byte] = k < 0 ? -code.magnitude[-k] : code.magnitude[k];
  }
  return code;
}

}  // namespace

const DynamicCode& SignedDynamicCode() {
  static const DynamicCode code = MakeCode(true);
  return code;
}

const DynamicCode& UnsignedDynamicCode() {
  static const DynamicCode code = MakeCode(false);
  return code;
}

}  // namespace haversack
