#include "tests/quant/lossless/wrong_messages.h"

#include <cstring>
#include <memory>
#include <stdexcept>

#include "quant/lossless/model.h"
#include "tests/quant/lossless/lossless_data.h"

namespace tw
{
namespace
{

using Bytes = std::vector<uint8_t>;

void add(Bytes &to, const void *data, size_t bytes)
{
    const auto *from = static_cast<const uint8_t *>(data);
    to.insert(to.end(), from, from + bytes);
}

uint32_t checksum(const Bytes &bytes)
{
    return tw_lossless_ref.check(bytes.data(), bytes.size() / 2, 0);
}

/* A message of one block, taken apart. */
struct Parts {
    tw_lossless_header_t header;
    Bytes head; /* without the entry */
    tw_lossless_entry_t entry;
    Bytes behind_entry, raw, words, lanes, escapes, tails, behind;

    Bytes put() const
    {
        tw_lossless_header_t is = header;
        tw_lossless_entry_t block_is = entry;
        Bytes block = raw, whole_head = head, all;
        for (const Bytes &part : {words, lanes, escapes, tails}) {
            add(block, part.data(), part.size());
        }
        const bool tailed = header.form == TW_LOSSLESS_TAILED;
        const auto head_bytes = uint32_t(head.size() + tw_lossless_entry_bytes(tailed) + behind_entry.size());
        if (!words.empty() || !lanes.empty()) {
            block_is.sizes = uint32_t(words.size() / 2 | escapes.size() / 2 << 16);
        }
        block_is.check = checksum(block);
        memcpy(whole_head.data(), &head_bytes, sizeof(head_bytes));
        add(whole_head, &block_is, tw_lossless_entry_bytes(tailed));
        add(whole_head, behind_entry.data(), behind_entry.size());
        is.bytes = uint32_t(sizeof(is) + whole_head.size() + block.size() + behind.size());
        is.check = checksum(whole_head);
        add(all, &is, sizeof(is));
        for (const Bytes &part : {whole_head, block, behind}) {
            add(all, part.data(), part.size());
        }
        return all;
    }
};

class Maker
{
  public:
    explicit Maker(Values kind, tw_type_t type) : type_(type), name_(name_of(kind))
    {
        if (tw_quant_lossless_create("ref", &codec_) != TW_OK) {
            throw std::runtime_error("no codec");
        }
        const Bytes values = make_values(kind, type, n, 100);
        Bytes message(tw_quant_lossless_bound_bytes(type, n));
        const tw_quant_lossless_segment_t segment = {values.data(), nullptr, n, 100, 0};
        size_t bytes = 0;
        if (tw_quant_lossless_encode(codec_, type, &segment, 1, message.data(), message.size(), &bytes) !=
            TW_OK) {
            throw std::runtime_error("no message");
        }
        message.resize(bytes);
        take(message);
        heads_.resize(n);
        if (type == TW_TYPE_BF16) {
            memcpy(heads_.data(), values.data(), 2 * n);
        } else {
            tails_.resize(n);
            tw_lossless_ref.split(type, values.data(), n, heads_.data(), tails_.data());
        }
    }
    ~Maker()
    {
        tw_quant_lossless_destroy(codec_);
    }
    Maker(const Maker &) = delete;
    Maker &operator=(const Maker &) = delete;

    Parts parts() const
    {
        return parts_;
    }

    /* Encoded anew from lanes that begin with another number than they may. */
    Parts begun_with(uint32_t more) const
    {
        Parts is = parts_;
        std::vector<uint16_t> words(3 * n + 32), escapes(2 * n);
        tw_entropy_writer_t writer = {};
        writer.words = words.data();
        writer.escapes = escapes.data();
        memcpy(writer.lanes, began_, sizeof(began_));
        writer.lanes[TW_ENTROPY_LANES - 1] += more;
        if (is.header.form == TW_LOSSLESS_TAILED && is.entry.tails == TW_LOSSLESS_TAILS_CODED) {
            tw_lossless_ref.encode_tails(&codec_->model, heads_.data(), codec_->expected, tails_.data(), n,
                                         &writer);
        }
        tw_lossless_ref.encode(&codec_->model, heads_.data(), codec_->expected, n, &writer);
        is.words.clear();
        is.escapes.clear();
        is.lanes.clear();
        add(is.words, words.data(), size_t((char *)writer.words - (char *)words.data()));
        add(is.escapes, escapes.data(), size_t((char *)writer.escapes - (char *)escapes.data()));
        add(is.lanes, writer.lanes, sizeof(writer.lanes));
        return is;
    }

    void give(const std::string &what, const Parts &is, std::vector<WrongMessage> &to,
              bool right = false) const
    {
        to.push_back({name_ + ": " + what, type_, n, is.put(), right});
    }

    /* Where in the head tables of tails are. */
    size_t tables_at() const
    {
        return TW_LOSSLESS_HEAD_BYTES + 7 +
               size_t(__builtin_popcount(parts_.head[5])) * TW_LOSSLESS_TABLE_BYTES;
    }

    static constexpr size_t n = 3000;

  private:
    void take(const Bytes &message)
    {
        memcpy(&parts_.header, message.data(), sizeof(parts_.header));
        const bool tailed = parts_.header.form == TW_LOSSLESS_TAILED;
        const size_t entry_bytes = tw_lossless_entry_bytes(tailed);
        uint32_t head_bytes = 0;
        const uint8_t *at = message.data() + sizeof(parts_.header);
        memcpy(&head_bytes, at, sizeof(head_bytes));
        parts_.entry.tails = TW_LOSSLESS_TAILS_RAW;
        parts_.head.assign(at, at + head_bytes - entry_bytes);
        memcpy(&parts_.entry, at + head_bytes - entry_bytes, entry_bytes);
        at += head_bytes;
        if (parts_.header.form == TW_LOSSLESS_PLAIN || parts_.entry.sizes == TW_ENTROPY_RAW) {
            throw std::runtime_error("it is not coded");
        }
        const size_t raw_bytes =
            tw_lossless_raw_bytes(n) - tw_lossless_raw_in_lanes(tw_lossless_raw_bytes(n));
        const auto part = [&at](Bytes &to, size_t bytes) {
            to.assign(at, at + bytes);
            at += bytes;
        };
        part(parts_.raw, raw_bytes);
        part(parts_.words, 2 * (parts_.entry.sizes & 0xffff));
        part(parts_.lanes, TW_ENTROPY_LANES_BYTES);
        part(parts_.escapes, 2 * (parts_.entry.sizes >> 16));
        part(parts_.tails, tw_lossless_tail_bytes(type_, n, parts_.entry.tails));
        find_beginning();
    }

    /* What lanes began with. */
    void find_beginning()
    {
        std::vector<uint16_t> heads(n + 32), tails(n + 32);
        tw_entropy_reader_t reader = {};
        Bytes words = parts_.words; /* the word behind the last one is read, as in a message, and not used */
        words.resize(words.size() + TW_ENTROPY_LANES_BYTES);
        reader.words_begin = words.data();
        reader.words = words.data() + parts_.words.size();
        reader.escapes_begin = parts_.escapes.data();
        reader.escapes = parts_.escapes.data() + parts_.escapes.size();
        memcpy(reader.lanes, parts_.lanes.data(), sizeof(reader.lanes));
        tw_lossless_model_decoder(codec_);
        int good = tw_lossless_ref.decode(&codec_->model, codec_->expected, n, &reader, heads.data());
        if (parts_.entry.tails == TW_LOSSLESS_TAILS_CODED) {
            good = good && tw_lossless_ref.decode_tails(&codec_->model, heads.data(), codec_->expected, n,
                                                        &reader, tails.data());
        }
        if (!good) {
            throw std::runtime_error("it does not decode");
        }
        memcpy(began_, reader.lanes, sizeof(began_));
    }

    tw_type_t type_;
    std::string name_;
    tw_quant_lossless_t *codec_ = nullptr;
    Parts parts_ = {};
    std::vector<uint16_t> heads_, tails_;
    uint32_t began_[TW_ENTROPY_LANES] = {};
};

/* Of any message that is coded. */
void give_blocks(Values kind, tw_type_t type, std::vector<WrongMessage> &to)
{
    const Maker maker(kind, type);
    const uint8_t zeros[8] = {};
    maker.give("as it should be", maker.begun_with(0), to, true);
    maker.give("a lane began with more", maker.begun_with(TW_ENTROPY_START), to);
    Parts is = maker.parts();
    is.words.insert(is.words.begin(), zeros, zeros + 2);
    maker.give("a word is left", is, to);
    is = maker.parts();
    is.escapes.insert(is.escapes.begin(), zeros, zeros + 2);
    maker.give("an escape is left", is, to);
    is = maker.parts();
    add(is.behind, zeros, 2);
    maker.give("bytes behind the last block", is, to);
    is = maker.parts();
    add(is.behind_entry, zeros, 2);
    maker.give("a head longer than what it has", is, to);
}

/* A head whose length changed may need a byte to be even, or lose the one that it had: one of them is
 * right. */
void give_even(const Maker &maker, const std::string &what, Parts is, std::vector<WrongMessage> &to)
{
    if (is.head.size() % 2) {
        is.head.push_back(0);
        maker.give(what + ", longer", is, to);
        is.head.resize(is.head.size() - 2);
    }
    maker.give(what, is, to);
}

void give_tails(std::vector<WrongMessage> &to)
{
    const Maker listed(Values::few, TW_TYPE_FP32), coded(Values::sums, TW_TYPE_FP32);
    const uint16_t n = uint16_t(listed.parts().tails.size() / 4);
    const auto with = [&](size_t entry, uint16_t index, uint16_t tail) {
        Parts is = listed.parts();
        memcpy(&is.tails[4 * entry], &index, 2);
        memcpy(&is.tails[4 * entry + 2], &tail, 2);
        return is;
    };
    uint16_t first;
    memcpy(&first, listed.parts().tails.data(), 2);
    listed.give("as it should be", listed.parts(), to, true);
    listed.give("a listed tail of 0", with(0, first, 0), to);
    listed.give("one twice", with(1, first, 1), to);
    listed.give("one behind the last", with(n - 1u, Maker::n, 1), to);
    Parts is = listed.parts();
    is.tails.clear();
    is.entry.tails = Maker::n / TW_LOSSLESS_LISTED + 1;
    for (uint16_t i = 0; i < is.entry.tails; i++) {
        const uint16_t one[2] = {i, 1};
        add(is.tails, one, sizeof(one));
    }
    listed.give("more than may be listed", is, to);
    is = listed.parts();
    is.tails.clear();
    is.entry.tails = TW_LOSSLESS_TAILS_CODED;
    listed.give("coded without tables", is, to);
    is = coded.parts();
    const size_t at = coded.tables_at(), tables = is.head[at];
    is.head.insert(is.head.begin() + long(at) + 1, (17 - tables) * TW_LOSSLESS_TAIL_SYMBOLS, 1);
    is.head[at] = 17;
    give_even(coded, "more tables than contexts", is, to);
    /* Raw heads with tails in lanes that are not there. */
    is = coded.parts();
    is.raw.assign(2 * Maker::n, 0);
    is.words.clear();
    is.lanes.clear();
    is.escapes.clear();
    is.tails.clear();
    is.entry.sizes = TW_ENTROPY_RAW;
    is.entry.tails = 0;
    coded.give("raw heads, no tails", is, to, true);
    is.entry.tails = TW_LOSSLESS_TAILS_CODED;
    coded.give("tails in lanes of raw heads", is, to);
    const Maker narrow(Values::gradient, TW_TYPE_BF16);
    is = narrow.parts();
    is.header.form = TW_LOSSLESS_TAILED;
    is.head.insert(is.head.begin() + long(narrow.tables_at()), 0);
    give_even(narrow, "tails of bf16", is, to);
}

/* Of a message of zeros, 30 rows of 100: its piece's scale, and its list of scales of columns. */
Bytes zeros_with(int16_t scale, const std::vector<std::pair<size_t, size_t>> &ones, size_t list_bits)
{
    Bytes bytes = make_zero_message(TW_TYPE_BF16, {{30, 100, true}});
    const size_t header = sizeof(tw_lossless_header_t);
    const size_t piece = header + TW_LOSSLESS_HEAD_BYTES + 1, list = piece + 6 + 4;
    memcpy(&bytes[piece + 4], &scale, 2);
    bytes.resize(list + (list_bits + 7) / 8);
    bytes.resize((bytes.size() + 1) / 2 * 2);
    for (const auto &run : ones) {
        for (size_t bit = run.first; bit < run.first + run.second; bit++) {
            bytes[list + bit / 8] = uint8_t(bytes[list + bit / 8] | 1u << bit % 8);
        }
    }
    const auto head_bytes = uint32_t(bytes.size() - header), all = uint32_t(bytes.size());
    memcpy(&bytes[header], &head_bytes, 4);
    const uint32_t check = tw_lossless_ref.check(&bytes[header], head_bytes / 2, 0);
    memcpy(&bytes[4], &all, 4);
    memcpy(&bytes[12], &check, 4);
    return bytes;
}

void give_scales(std::vector<WrongMessage> &to)
{
    const auto give = [&to](const char *what, const Bytes &bytes, bool right) {
        to.push_back({what, TW_TYPE_BF16, 3000, bytes, right});
    };
    const int16_t most = TW_LOSSLESS_SCALE_MAX;
    give("the largest scale", zeros_with(most, {}, 104), true);
    give("the smallest scale", zeros_with(-most, {}, 104), true);
    give("a larger scale", zeros_with(most + 1, {}, 104), false);
    give("a smaller scale", zeros_with(int16_t(-most - 1), {}, 104), false);
    /* 4 bits k; of 100 values, 0 each, a zero and k low bits. */
    give("the largest k", zeros_with(0, {{0, 2}, {3, 1}}, 4 + 100 * 12), true);
    give("a larger k", zeros_with(0, {{2, 2}}, 4 + 100 * 13), false);
    /* 30 rows: columns are in halves, 1023 at most; k = 11, and the low bits of the first value, 2046 or
     * -1024, which is 2047, or a one more before them, which makes it 2048: 1024. */
    const std::pair<size_t, size_t> k = {0, 2}, k8 = {3, 1};
    give("the largest column", zeros_with(0, {k, k8, {4 + 32 + 1, 10}}, 4 + 100 * 12), true);
    give("a smaller column", zeros_with(0, {k, k8, {4 + 32, 11}}, 4 + 100 * 12), false);
    give("a larger column", zeros_with(0, {k, k8, {4, 1}}, 5 + 100 * 12), false);
}

} // namespace

std::vector<WrongMessage> make_wrong_messages()
{
    std::vector<WrongMessage> all;
    give_blocks(Values::gradient, TW_TYPE_BF16, all);
    give_blocks(Values::outliers, TW_TYPE_FP16, all);
    give_blocks(Values::gradient, TW_TYPE_FP32, all);
    give_blocks(Values::sums, TW_TYPE_FP32, all);
    give_tails(all);
    give_scales(all);
    return all;
}

} // namespace tw
