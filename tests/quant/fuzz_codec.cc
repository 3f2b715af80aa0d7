/* What comes from outside: text that names a codec, and encoded bytes from another rank. First byte: which of
 * the two. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "quant/quant.h"

namespace
{

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_codec: not so: %s\n", what);
        abort();
    }
}

void ignore_log(void *, tw_log_level_t, const char *, int, const char *)
{
}

/* A codec is taken or refused; one that is taken survives being written and read again. */
void check_text(const std::string &text)
{
    tw_quant_codec_t codec, again;
    char printed[80];
    if (tw_quant_codec_parse(text.c_str(), &codec) != TW_OK) {
        return;
    }
    check(tw_quant_codec_check(&codec) == TW_OK, "a parsed codec is valid");
    tw_quant_codec_format(&codec, printed, sizeof(printed));
    check(tw_quant_codec_parse(printed, &again) == TW_OK, "a formatted codec parses");
    check(tw_quant_codec_equal(&codec, &again), "it is the same one");
}

/* Most elements whose encoding fits into this many bytes. */
size_t elems_in(const tw_quant_codec_t *codec, size_t bytes)
{
    size_t low = 0, high = 2 * bytes + 1;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        (tw_quant_encoded_bytes(codec, middle) <= bytes ? low : high) = middle;
    }
    return low;
}

std::vector<float> decode(const tw_quant_codec_t &codec, const char *backend,
                          const std::vector<uint8_t> &encoded, size_t n)
{
    const tw_quant_params_t params = {codec, TW_MEM_HOST, backend};
    const tw_quant_args_t args = {TW_TYPE_FP32, 0, 0, 1.0f, nullptr, nullptr, 0, 0};
    tw_quant_t *quant;
    std::vector<float> y(n);
    check(tw_quant_create(&params, &quant) == TW_OK, "there is a context");
    const tw_quant_segment_t segment = {encoded.data(), nullptr, y.data(), n, 0, 0};
    check(tw_quant_decode(quant, &args, &segment, 1) == TW_OK, "any bytes decode");
    tw_quant_destroy(quant);
    return y;
}

/* Any bytes decode to something, the same on every backend; buffers are as small as they may be. */
void check_bytes(uint8_t options, const uint8_t *data, size_t size)
{
    const tw_quant_codec_t codec = {options & 1 ? TW_QUANT_INT8 : TW_QUANT_INT4,
                                    32 << (options >> 1 & 3),
                                    tw_quant_scale_t(options >> 3 & 1),
                                    TW_QUANT_ROUND_NEAREST,
                                    options >> 4 & 1,
                                    0};
    const size_t n = elems_in(&codec, size);
    const std::vector<uint8_t> encoded(data, data + tw_quant_encoded_bytes(&codec, n));
    const std::vector<float> expected = decode(codec, "ref", encoded, n);
    const char *names[8];
    for (size_t b = 0, count = tw_quant_backends(TW_MEM_HOST, names, 8); b < count; b++) {
        const std::vector<float> got = decode(codec, names[b], encoded, n);
        for (size_t i = 0; i < n; i++) {
            check(memcmp(&got[i], &expected[i], 4) == 0 || (std::isnan(got[i]) && std::isnan(expected[i])),
                  "all backends decode alike");
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    tw_log_set_sink(ignore_log, nullptr);
    if (data[0] & 0x80) {
        check_bytes(data[0], data + 1, size - 1);
    } else {
        check_text(std::string(reinterpret_cast<const char *>(data) + 1, size - 1));
    }
    return 0;
}
