/* Lossless messages from another rank. The first bytes say how many elements there are, of which type, and
 * whether checksums are made right, so that what is behind them is reached; the rest is the message. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "quant/lossless/value.h"

namespace
{

constexpr size_t header_bytes = TW_QUANT_LOSSLESS_HEADER_BYTES;

void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "fuzz_lossless: not so: %s\n", what);
        abort();
    }
}

void ignore_log(void *, tw_log_level_t, const char *, int, const char *)
{
}

/* Made once a backend, as making one costs more than most inputs. */
tw_quant_lossless_t *codec_of(const std::string &backend)
{
    static auto &codecs = *new std::map<std::string, tw_quant_lossless_t *>;
    tw_quant_lossless_t *&codec = codecs[backend];
    check(codec || tw_quant_lossless_create(backend.c_str(), &codec) == TW_OK, "there is a codec");
    return codec;
}

struct Result {
    tw_status_t status;
    std::vector<uint8_t> values;
    std::vector<float> sums;
};

/* Buffers are as small as they may be. */
Result decode(const char *backend, tw_type_t type, const std::vector<uint8_t> &message, size_t n)
{
    Result result = {TW_OK, std::vector<uint8_t>(n * tw_type_bytes(type)), std::vector<float>(n, 1.0f)};
    tw_quant_lossless_segment_t segment = {nullptr, result.values.data(), n, 0, 0};
    tw_quant_lossless_t *codec = codec_of(backend);
    result.status = tw_quant_lossless_decode(codec, type, &segment, 1, message.data(), message.size());
    segment.dst = result.sums.data();
    const tw_quant_message_args_t args = {type, &segment, 1, 0};
    check(tw_lossless_decode(codec, &args, TW_QUANT_SINK_ADD_FP32, message.data(), message.size()) ==
              result.status,
          "sums are judged as values are");
    return result;
}

uint32_t checksum(const uint8_t *data, size_t bytes)
{
    return tw_lossless_ref.check(data, bytes / 2, 0);
}

/* As far as the message goes, each block's checksum is that of its bytes. */
void make_blocks_right(std::vector<uint8_t> &message, tw_type_t type, size_t n, size_t head_bytes)
{
    tw_quant_lossless_t *codec = codec_of("ref");
    uint8_t *head = message.data() + header_bytes, *at = head + head_bytes;
    size_t taken, left = message.size() - header_bytes - head_bytes;
    if (tw_lossless_head_read(codec, head, head_bytes, n, &taken) != TW_OK) {
        return;
    }
    for (size_t done = 0; done < codec->shape.n_live; done += TW_LOSSLESS_BLOCK_ELEMS) {
        const size_t entry_bytes = tw_lossless_entry_bytes(codec->tails_are.tailed);
        tw_lossless_entry_t entry = {0, 0, TW_LOSSLESS_TAILS_RAW};
        if (taken + entry_bytes > head_bytes) {
            return;
        }
        memcpy(&entry, head + taken, entry_bytes);
        size_t elems = std::min(codec->shape.n_live - done, size_t(TW_LOSSLESS_BLOCK_ELEMS));
        size_t raw = tw_lossless_raw_bytes(elems);
        size_t coded =
            raw - tw_lossless_raw_in_lanes(raw) + 2 * (entry.sizes & 0xffff) + 128 + 2 * (entry.sizes >> 16);
        size_t bytes = (entry.sizes == TW_ENTROPY_RAW ? 2 * elems : coded) +
                       tw_lossless_tail_bytes(type, elems, entry.tails);
        if (bytes > left) {
            return;
        }
        entry.check = checksum(at, bytes);
        memcpy(head + taken, &entry, entry_bytes);
        taken += entry_bytes;
        at += bytes;
        left -= bytes;
    }
}

void make_right(std::vector<uint8_t> &message, tw_type_t type, size_t n)
{
    tw_lossless_header_t header = {TW_LOSSLESS_MAGIC,
                                   TW_LOSSLESS_VERSION,
                                   uint8_t(type),
                                   uint8_t(message[3] % 3),
                                   uint32_t(message.size()),
                                   uint32_t(n),
                                   0};
    size_t checked = message.size() - header_bytes;
    codec_of("ref")->tails_are.tailed = header.form == TW_LOSSLESS_TAILED;
    if (header.form != TW_LOSSLESS_PLAIN && checked >= 4) {
        uint32_t head_bytes;
        memcpy(&head_bytes, message.data() + header_bytes, 4);
        if (head_bytes <= checked && head_bytes % 2 == 0) {
            checked = head_bytes;
            make_blocks_right(message, type, n, head_bytes);
        }
    }
    header.check = checksum(message.data() + header_bytes, checked);
    memcpy(message.data(), &header, sizeof(header));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    tw_log_set_sink(ignore_log, nullptr);
    const size_t n = data[0] | (data[1] & 7) << 8;
    const tw_type_t types[] = {TW_TYPE_BF16, TW_TYPE_FP16, TW_TYPE_FP32, TW_TYPE_BF16};
    const tw_type_t type = types[data[2] & 3];
    std::vector<uint8_t> message(data + 3, data + size);
    if ((data[2] & 12) && message.size() >= header_bytes) {
        make_right(message, type, n);
    }
    const Result expected = decode("ref", type, message, n);
    const char *names[8];
    for (size_t b = 0, count = tw_quant_lossless_backends(names, 8); b < count; b++) {
        const Result got = decode(names[b], type, message, n);
        check(got.status == expected.status, "all backends judge alike");
        check(got.status != TW_OK || (got.values == expected.values &&
                                      (n == 0 || memcmp(got.sums.data(), expected.sums.data(), 4 * n) == 0)),
              "all backends decode alike");
    }
    return 0;
}
