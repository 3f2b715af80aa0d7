/* Messages of lossless deltas from another rank. The first bytes say how many elements there are, whether
 * they have 8 bits and whether there are states; the rest is the message, its header made right in three of
 * four cases, so that what follows is reached. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "quant/delta/delta.h"

namespace
{

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_delta: not so: %s\n", what);
        abort();
    }
}

void ignore_log(void *, tw_log_level_t, const char *, int, const char *)
{
}

struct Result {
    tw_status_t status;
    std::vector<uint16_t> values;
    std::vector<uint8_t> states;
};

/* Made once a backend, as making one costs more than most inputs. */
tw_quant_delta_t *codec_of(const std::string &backend)
{
    static auto &codecs = *new std::map<std::string, tw_quant_delta_t *>;
    tw_quant_delta_t *&delta = codecs[backend];
    check(delta || tw_quant_delta_create(backend.c_str(), &delta) == TW_OK, "there is a codec");
    return delta;
}

/* Buffers are as small as they may be. */
Result decode(const char *backend, const std::vector<uint8_t> &message, size_t n, bool second)
{
    std::vector<uint16_t> old_values(n);
    Result result = {TW_OK, std::vector<uint16_t>(n), std::vector<uint8_t>(n)};
    for (size_t i = 0; i < n; i++) {
        old_values[i] = uint16_t(0x3c00 + i * 37 % 600 + (i % 5 ? 0 : 0x8000));
        result.states[i] = uint8_t(i * 11);
    }
    const tw_quant_delta_segment_t segment = {old_values.data(), nullptr, result.values.data(),
                                              second ? result.states.data() : nullptr, n};
    result.status = tw_quant_delta_decode(codec_of(backend), &segment, 1, message.data(), message.size());
    return result;
}

/* Of 8 bits: new elements among the values. */
Result decode_narrow(const char *backend, const std::vector<uint8_t> &message, size_t n)
{
    std::vector<uint8_t> old_codes(n), new_codes(n);
    for (size_t i = 0; i < n; i++) {
        old_codes[i] = uint8_t(i * 37 % 90 + (i % 5 ? 0 : 0x80));
    }
    const tw_quant_delta_segment_t segment = {old_codes.data(), nullptr, new_codes.data(), nullptr, n};
    Result result = {};
    result.status = tw_quant_delta8_decode(codec_of(backend), &segment, 1, message.data(), message.size());
    result.values.assign(new_codes.begin(), new_codes.end());
    return result;
}

void make_narrow_header_right(std::vector<uint8_t> &message, size_t n)
{
    tw_delta8_header_t header;
    memcpy(&header, message.data(), sizeof(header));
    header = {TW_DELTA8_MAGIC, TW_DELTA8_VERSION, 0, uint32_t(message.size()), uint32_t(n), header.check};
    memcpy(message.data(), &header, sizeof(header));
}

void make_header_right(std::vector<uint8_t> &message, size_t n, bool second)
{
    const tw_delta_header_t header = {TW_DELTA_MAGIC, TW_DELTA_VERSION,
                                      uint8_t(TW_DELTA_FLAG_CODED | (second ? TW_DELTA_FLAG_SECOND : 0)), 0,
                                      uint32_t(message.size())};
    const auto elems = uint32_t(n);
    memcpy(message.data(), &header, sizeof(header));
    memcpy(message.data() + sizeof(header), &elems, sizeof(elems));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    tw_log_set_sink(ignore_log, nullptr);
    const size_t n = data[0] | (data[1] & 7) << 8;
    const bool second = data[2] & 1, narrow = data[2] & 8;
    std::vector<uint8_t> message(data + 3, data + size);
    if ((data[2] & 6) && message.size() >= sizeof(tw_delta8_header_t)) {
        narrow ? make_narrow_header_right(message, n) : make_header_right(message, n, second);
    }
    auto made = [&](const char *backend) {
        return narrow ? decode_narrow(backend, message, n) : decode(backend, message, n, second);
    };
    const Result expected = made("ref");
    const char *names[8];
    for (size_t b = 0, count = tw_quant_delta_backends(names, 8); b < count; b++) {
        const Result got = made(names[b]);
        check(got.status == expected.status, "all backends judge alike");
        check(got.status != TW_OK || (got.values == expected.values && got.states == expected.states),
              "all backends decode alike");
    }
    return 0;
}
