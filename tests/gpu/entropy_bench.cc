#include "tests/gpu/entropy_bench.h"

#include <cstring>
#include <memory>
#include <stdexcept>

#include "tests/quant/cuda/stream_world.h"
#include "tests/quant/delta/delta_data.h"
#include "tests/quant/lossless/lossless_data.h"

namespace tw::gpu
{

namespace
{

using Bytes = std::vector<uint8_t>;

/* What is measured repeats itself after so many elements: a codec does not see it. */
constexpr size_t pattern_elems = size_t{1} << 20, columns = 1024;
/* Sets of states, as a call moves them on: calls that are timed together have one each. */
constexpr size_t n_sets = 4;

void need(bool good, const char *what)
{
    if (!good) {
        throw std::runtime_error(what);
    }
}

/* Device memory. */
class Memory
{
  public:
    explicit Memory(size_t bytes) : bytes_(bytes), data_(stream_world().alloc(bytes + 1))
    {
        need(data_ != nullptr, "no memory on the device");
    }
    explicit Memory(const Bytes &content) : Memory(content.size())
    {
        put(content);
    }
    ~Memory()
    {
        stream_world().free(data_);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    void put(const Bytes &content)
    {
        stream_world().copy(data_, content.data(), content.size());
    }
    Bytes get(size_t bytes) const
    {
        Bytes content(bytes);
        stream_world().copy(content.data(), data_, bytes);
        return content;
    }
    uint8_t *data(size_t at = 0) const
    {
        return static_cast<uint8_t *>(data_) + at;
    }
    size_t bytes() const
    {
        return bytes_;
    }

  private:
    size_t bytes_;
    void *data_;
};

/* Repeat the pattern up to so many bytes. */
Bytes repeated(const Bytes &pattern, size_t bytes)
{
    Bytes all(bytes);
    for (size_t at = 0; at < bytes; at += pattern.size()) {
        memcpy(&all[at], pattern.data(), std::min(pattern.size(), bytes - at));
    }
    return all;
}

Bytes repeated(const std::vector<uint16_t> &pattern, size_t bytes)
{
    Bytes as_bytes(2 * pattern.size());
    memcpy(as_bytes.data(), pattern.data(), as_bytes.size());
    return repeated(as_bytes, bytes);
}

/* The median time of one of `n` calls. */
double time_of(size_t n, double seconds, const std::function<void()> &before,
               const std::function<void(size_t)> &call)
{
    const auto all = [&] {
        for (size_t k = 0; k < n; k++) {
            call(k);
        }
    };
    return stream_world().time && seconds > 0 ? stream_world().time(seconds, before, all) / double(n) : 0;
}

double time_of_copy(double moved_bytes, double seconds)
{
    const size_t half = size_t(moved_bytes / 2);
    if (!stream_world().time || seconds <= 0) {
        return 0;
    }
    const Memory from(half), to(half);
    return time_of(
        n_sets, seconds, [] {}, [&](size_t) { stream_world().copy_on_device(to.data(), from.data(), half); });
}

/* ---- codecs of messages -------------------------------------------------------------------------------- */

/* Of the table of codecs. */
std::vector<const char *> names_of_message_codecs()
{
    std::vector<const char *> names;
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get(tw_quant_kind_t(kind));
        if (row->form == TW_QUANT_MESSAGE) {
            names.push_back(row->name);
        }
    }
    return names;
}

struct Messages {
    size_t n;
    std::string name;
    Bytes plain, message, decoded; /* the host's */
    tw_quant_messages_stream_t *codec = nullptr;

    Messages(const char *text, size_t bytes) : n(bytes / 2), name(text), decoded(2 * n)
    {
        const size_t first = std::min(n, pattern_elems);
        plain = repeated(make_values(Values::gradient, TW_TYPE_BF16, first, columns), 2 * n);
        message.resize(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n));
        tw_quant_codec_t is;
        tw_quant_messages_t *host;
        size_t taken = 0;
        need(tw_quant_codec_parse(text, &is) == TW_OK &&
                 tw_quant_messages_create(&is, nullptr, &host) == TW_OK,
             "no codec");
        const tw_quant_message_segment_t segment = {plain.data(), decoded.data(), n, columns, 0};
        const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 1};
        tw_status_t status = tw_quant_messages_encode(host, &args, message.data(), message.size(), &taken);
        status = status ? status
                        : tw_quant_messages_decode(host, &args, TW_QUANT_SINK_STORE, message.data(), taken);
        tw_quant_messages_destroy(host);
        need(status == TW_OK && stream_world().create(&is, &codec) == TW_OK, "no codec");
        message.resize(taken);
    }
    ~Messages()
    {
        tw_quant_messages_stream_destroy(codec);
    }
    Messages(const Messages &) = delete;
    Messages &operator=(const Messages &) = delete;

    EntropyLine encode(double seconds, const EntropyCall &first) const
    {
        const Memory from(plain), to(tw_quant_lossless_bound_bytes(TW_TYPE_BF16, n));
        const tw_quant_message_segment_t segment = {from.data(), nullptr, n, columns, 0};
        const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 1};
        const Memory workspace(tw_quant_messages_encode_workspace_bytes(codec, &args));
        const tw_quant_stream_args_t on = {nullptr, workspace.data(), workspace.bytes(), nullptr, nullptr};
        const auto call = [&](size_t) {
            need(tw_quant_messages_stream_encode(codec, &on, &args, to.data(), to.bytes()) == TW_OK,
                 "a call failed");
        };
        first([&] { call(0); });
        const bool same = to.get(message.size()) == message;
        return line(" encode",
                    time_of(
                        n_sets, seconds, [] {}, call),
                    seconds, same);
    }

    EntropyLine decode(double seconds, const EntropyCall &first) const
    {
        const Memory from(message), to(2 * n);
        const tw_quant_message_segment_t segment = {nullptr, to.data(), n, 0, 0};
        const tw_quant_message_args_t args = {TW_TYPE_BF16, &segment, 1, 0};
        const Memory workspace(tw_quant_messages_decode_workspace_bytes(codec, TW_TYPE_BF16, n, 1));
        const tw_quant_stream_args_t on = {nullptr, workspace.data(), workspace.bytes(), nullptr, nullptr};
        const auto call = [&](size_t) {
            need(tw_quant_messages_stream_decode(codec, &on, &args, TW_QUANT_SINK_STORE,
                                                 {from.data(), message.size(), 0}) == TW_OK,
                 "a call failed");
        };
        first([&] { call(0); });
        const bool same = to.get(2 * n) == decoded;
        return line(" decode",
                    time_of(
                        n_sets, seconds, [] {}, call),
                    seconds, same);
    }

    EntropyLine line(const char *op, double op_sec, double seconds, bool same) const
    {
        const double moved = double(plain.size() + message.size());
        return {name + op, plain.size(), message.size(), moved, op_sec, time_of_copy(moved, seconds), same};
    }
};

/* ---- the lossless delta -----------------------------------------------------------------------------------
 * */

struct Delta {
    size_t n;
    Bytes old_values, new_values, before, after, message; /* states before and after; the host's */
    tw_quant_delta_stream_t *codec = nullptr;

    explicit Delta(size_t bytes) : n(bytes / 2)
    {
        const auto steps = make_steps(Change::adam, std::min(n, pattern_elems), 2);
        const Bytes oldest = repeated(steps[0], 2 * n);
        old_values = repeated(steps[1], 2 * n);
        new_values = repeated(steps[2], 2 * n);
        after.resize(n);
        encode_on_host(oldest, old_values);
        before = after;
        encode_on_host(old_values, new_values);
        need(stream_world().create_delta(&codec) == TW_OK, "no codec");
    }
    ~Delta()
    {
        tw_quant_delta_stream_destroy(codec);
    }
    Delta(const Delta &) = delete;
    Delta &operator=(const Delta &) = delete;

    void encode_on_host(const Bytes &from, const Bytes &to)
    {
        tw_quant_delta_t *host;
        size_t taken = 0;
        message.resize(tw_quant_delta_bound_bytes(n));
        need(tw_quant_delta_create(nullptr, &host) == TW_OK, "no codec");
        const tw_quant_delta_segment_t segment = {from.data(), to.data(), nullptr, after.data(), n};
        const tw_status_t status =
            tw_quant_delta_encode(host, &segment, 1, message.data(), message.size(), &taken);
        tw_quant_delta_destroy(host);
        need(status == TW_OK, "no message");
        message.resize(taken);
    }

    /* All sets of states as they were before. */
    void reset(const Memory &states) const
    {
        for (size_t k = 0; k < n_sets; k++) {
            stream_world().copy(states.data(k * n), before.data(), n);
        }
    }

    EntropyLine encode(double seconds, const EntropyCall &first) const
    {
        const Memory base(old_values), src(new_values), states(n_sets * n), to(tw_quant_delta_bound_bytes(n)),
            workspace(tw_quant_delta_encode_workspace_bytes(codec, n, 1));
        const tw_quant_stream_args_t args = {nullptr, workspace.data(), workspace.bytes(), nullptr, nullptr};
        const auto call = [&](size_t k) {
            const tw_quant_delta_segment_t segment = {base.data(), src.data(), nullptr, states.data(k * n),
                                                      n};
            need(tw_quant_delta_stream_encode(codec, &args, &segment, 1, to.data(), to.bytes()) == TW_OK,
                 "a call failed");
        };
        reset(states);
        first([&] { call(0); });
        const bool same = to.get(message.size()) == message && states.get(n) == after;
        return line("lossless delta encode",
                    time_of(
                        n_sets, seconds, [&] { reset(states); }, call),
                    seconds, same);
    }

    EntropyLine decode(double seconds, const EntropyCall &first) const
    {
        const Memory base(old_values), dst(2 * n), states(n_sets * n), from(message),
            workspace(tw_quant_delta_decode_workspace_bytes(codec, n, 1));
        const tw_quant_stream_args_t args = {nullptr, workspace.data(), workspace.bytes(), nullptr, nullptr};
        const auto call = [&](size_t k) {
            const tw_quant_delta_segment_t segment = {base.data(), nullptr, dst.data(), states.data(k * n),
                                                      n};
            need(tw_quant_delta_stream_decode(codec, &args, &segment, 1, {from.data(), message.size(), 0}) ==
                     TW_OK,
                 "a call failed");
        };
        reset(states);
        first([&] { call(0); });
        const bool same = dst.get(2 * n) == new_values && states.get(n) == after;
        return line("lossless delta decode",
                    time_of(
                        n_sets, seconds, [&] { reset(states); }, call),
                    seconds, same);
    }

    /* Old and new values, the message, states twice. */
    EntropyLine line(const char *op, double op_sec, double seconds, bool same) const
    {
        const double moved = double(old_values.size() + new_values.size() + message.size() + 2 * n);
        return {op, new_values.size(), message.size(), moved, op_sec, time_of_copy(moved, seconds), same};
    }
};

} // namespace

std::vector<EntropyLine> entropy_bench(const std::vector<size_t> &sizes, double seconds,
                                       const EntropyCall &given)
{
    const EntropyCall first = given ? given : [](const std::function<void()> &call) { call(); };
    std::vector<EntropyLine> lines;
    for (size_t bytes : sizes) {
        for (const char *name : names_of_message_codecs()) {
            const Messages messages(name, bytes);
            lines.push_back(messages.encode(seconds, first));
            lines.push_back(messages.decode(seconds, first));
        }
        const Delta delta(bytes);
        lines.push_back(delta.encode(seconds, first));
        lines.push_back(delta.decode(seconds, first));
    }
    return lines;
}

std::vector<std::string> entropy_ops()
{
    std::vector<std::string> ops;
    for (const std::string name : names_of_message_codecs()) {
        ops.insert(ops.end(), {name + " encode", name + " decode"});
    }
    ops.insert(ops.end(), {"lossless delta encode", "lossless delta decode"});
    return ops;
}

std::string entropy_table(const std::vector<EntropyLine> &lines)
{
    char text[160], bytes[32], speed[64];
    snprintf(text, sizeof(text), "%-18s %-4s %8s %6s %9s %9s %8s %s\n", "op", "type", "source", "bits", "us",
             "GB/s", "fraction", "bytes");
    std::string table = text;
    for (const EntropyLine &line : lines) {
        snprintf(speed, sizeof(speed), "%9.1f %9.1f %8.3f", line.op_sec * 1e6,
                 double(line.bytes) / line.op_sec * 1e-9, line.copy_sec / line.op_sec);
        snprintf(text, sizeof(text), "%-18s bf16 %8s %6.2f %s %s\n", line.op.c_str(),
                 tw_format_bytes(line.bytes, bytes, sizeof(bytes)),
                 16.0 * double(line.message_bytes) / double(line.bytes),
                 line.op_sec > 0 ? speed : "  emulated: no time is measured",
                 line.same ? "the host's" : "NOT THE HOST'S");
        table += text;
    }
    return table;
}

bool entropy_json(const EntropyLine &line, const std::string &device, const std::string &command, FILE *json)
{
    tw_json_t *to = tw_json_create();
    tw_json_add_string(to, "table", "gpu_entropy");
    tw_json_add_string(to, "op", line.op.c_str());
    tw_json_add_string(to, "type", "bf16");
    tw_json_add_int(to, "bytes", int64_t(line.bytes));
    tw_json_add_int(to, "message_bytes", int64_t(line.message_bytes));
    tw_json_add_double(to, "moved_bytes", line.moved_bytes);
    tw_json_add_bool(to, "emulated", line.op_sec <= 0);
    if (line.op_sec > 0) {
        tw_json_add_double(to, "time_us_median", line.op_sec * 1e6);
        tw_json_add_double(to, "GBps", double(line.bytes) / line.op_sec * 1e-9);
        tw_json_add_double(to, "moved_GBps", line.moved_bytes / line.op_sec * 1e-9);
        tw_json_add_double(to, "copy_GBps", line.moved_bytes / line.copy_sec * 1e-9);
        tw_json_add_double(to, "floor_fraction", line.copy_sec / line.op_sec);
    }
    tw_json_add_bool(to, "ok", line.same);
    tw_json_add_string(to, "device", device.c_str());
    tw_json_add_string(to, "command", command.c_str());
    const tw_status_t status = tw_json_write_line(to, json);
    tw_json_destroy(to);
    return status == TW_OK;
}

} // namespace tw::gpu
