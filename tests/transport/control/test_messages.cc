/* Every message there and back, and everything that is not one. */
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "transport/control/messages.h"

namespace
{

struct Writer {
    Writer() = default;
    Writer(const Writer &) = delete;
    ~Writer()
    {
        tw_msg_writer_cleanup(&w);
    }
    std::vector<uint8_t> bytes() const
    {
        return std::vector<uint8_t>(w.data, w.data + w.bytes);
    }
    tw_msg_writer_t w = {};
};

using Parse = std::function<tw_status_t(const uint8_t *, size_t)>;

/* The parser takes the payload, and nothing that is shorter or longer. Each length in a block of its own, so
 * that AddressSanitizer sees a read past the end. */
void expect_exact(const std::vector<uint8_t> &payload, const Parse &parse)
{
    for (size_t bytes = 0; bytes <= payload.size() + 3; bytes++) {
        std::vector<uint8_t> in = payload;
        in.resize(bytes);
        EXPECT_EQ(parse(in.data(), in.size()), bytes == payload.size() ? TW_OK : TW_ERR_FORMAT)
            << bytes << " bytes";
    }
}

TEST(RendezvousMsg, Header)
{
    uint8_t raw[TW_MSG_HEADER_BYTES];
    tw_msg_header_t header = {TW_MSG_ADDRESS, 0x1234}, seen;
    tw_msg_header_write(&header, raw);
    EXPECT_EQ(memcmp(raw, "TWIR\x01\x07\x00\x00\x34\x12\x00\x00", sizeof(raw)), 0);
    EXPECT_EQ(tw_msg_header_parse(raw, &seen), TW_OK);
    EXPECT_EQ(seen.type, header.type);
    EXPECT_EQ(seen.bytes, header.bytes);
    for (size_t i : {0, 1, 2, 3, 4, 6, 7}) {
        raw[i] ^= 1;
        EXPECT_EQ(tw_msg_header_parse(raw, &seen), TW_ERR_FORMAT) << "byte " << i;
        raw[i] ^= 1;
    }
}

TEST(RendezvousMsg, HeaderKnowsTypesAndTheirSizes)
{
    uint8_t raw[TW_MSG_HEADER_BYTES];
    tw_msg_header_t seen;
#define CHECK_TYPE(name, value, max_bytes)                         \
    {                                                              \
        const uint32_t most = (max_bytes);                         \
        tw_msg_header_t header = {value, most};                    \
        tw_msg_header_write(&header, raw);                         \
        EXPECT_EQ(tw_msg_header_parse(raw, &seen), TW_OK);         \
        header.bytes = most + 1;                                   \
        tw_msg_header_write(&header, raw);                         \
        EXPECT_EQ(tw_msg_header_parse(raw, &seen), TW_ERR_FORMAT); \
        EXPECT_STREQ(tw_msg_type_name(value), &#name[7]);          \
    }
    TW_MSG_LIST(CHECK_TYPE)
    for (int type : {0, TW_MSG_LOST + 1, 255}) {
        const tw_msg_header_t header = {type, 0};
        tw_msg_header_write(&header, raw);
        EXPECT_EQ(tw_msg_header_parse(raw, &seen), TW_ERR_FORMAT) << type;
        EXPECT_STREQ(tw_msg_type_name(type), "?");
    }
}

TEST(RendezvousMsg, OnlyTheFirstTwoAreUnsigned)
{
    EXPECT_FALSE(tw_msg_is_signed(TW_MSG_HELLO));
    EXPECT_FALSE(tw_msg_is_signed(TW_MSG_CHALLENGE));
    for (int type = TW_MSG_JOIN; type <= TW_MSG_FAILED; type++) {
        EXPECT_TRUE(tw_msg_is_signed(type));
    }
}

TEST(RendezvousMsg, Join)
{
    Writer out;
    tw_msg_join_t join = {}, seen;
    memcpy(join.instance, "0123456789abcdef", sizeof(join.instance));
    join.rank = 3;
    join.world = 70000;
    join.who.local_rank = -1;
    join.who.node_id = 0xfedcba9876543210;
    join.who.shm_id = 7;
    strcpy(join.version, "1.2.3");
    strcpy(join.who.ucx, "1.19.0");
    join.who.local_world = 5;
    strcpy(join.who.net_tls, "tcp");
    strcpy(join.who.node_tls, "posix,sysv,cma");
    tw_msg_join_write(&join, &out.w);
    std::vector<uint8_t> payload = out.bytes();
    EXPECT_LE(payload.size(), 128u) << "what 0.2 takes";
    const size_t without_tls = payload.size() - 4 - 2 * TW_MSG_TLS_BYTES,
                 without_versions = without_tls - 2 * TW_MSG_VERSION_BYTES;
    for (size_t bytes = 0; bytes < payload.size(); bytes++) {
        EXPECT_EQ(tw_msg_join_parse(payload.data(), bytes, &seen),
                  bytes == without_versions || bytes == without_tls ? TW_OK : TW_ERR_FORMAT)
            << bytes;
    }
    /* Ranks of older and of newer versions are understood, so that their versions can be named. */
    EXPECT_EQ(tw_msg_join_parse(payload.data(), without_versions, &seen), TW_OK);
    EXPECT_EQ(seen.who.shm_id, join.who.shm_id);
    EXPECT_STREQ(seen.version, "");
    EXPECT_EQ(tw_msg_join_parse(payload.data(), without_tls, &seen), TW_OK);
    EXPECT_STREQ(seen.who.ucx, "1.19.0");
    EXPECT_STREQ(seen.who.net_tls, "");
    EXPECT_EQ(seen.who.local_world, -1);
    payload.push_back(17);
    EXPECT_EQ(tw_msg_join_parse(payload.data(), payload.size(), &seen), TW_OK);
    EXPECT_STREQ(seen.version, "1.2.3");
    payload.pop_back();
    /* Whatever is in the fields is a text that ends. */
    std::vector<uint8_t> wild = payload;
    memset(wild.data() + without_versions, 0xff, 2 * TW_MSG_VERSION_BYTES);
    wild[without_versions + 1] = '\n';
    EXPECT_EQ(tw_msg_join_parse(wild.data(), wild.size(), &seen), TW_OK);
    EXPECT_EQ(std::string(seen.version), std::string(TW_MSG_VERSION_BYTES - 1, '?'));
    EXPECT_EQ(std::string(seen.who.ucx), std::string(TW_MSG_VERSION_BYTES - 1, '?'));
    ASSERT_EQ(tw_msg_join_parse(payload.data(), payload.size(), &seen), TW_OK);
    EXPECT_EQ(memcmp(seen.instance, join.instance, sizeof(join.instance)), 0);
    EXPECT_EQ(seen.rank, join.rank);
    EXPECT_EQ(seen.world, join.world);
    EXPECT_EQ(seen.who.local_rank, join.who.local_rank);
    EXPECT_EQ(seen.who.node_id, join.who.node_id);
    EXPECT_EQ(seen.who.shm_id, join.who.shm_id);
    EXPECT_STREQ(seen.version, "1.2.3");
    EXPECT_STREQ(seen.who.ucx, "1.19.0");
    EXPECT_EQ(seen.who.local_world, 5);
    EXPECT_STREQ(seen.who.net_tls, "tcp");
    EXPECT_STREQ(seen.who.node_tls, "posix,sysv,cma");
}

TEST(RendezvousMsg, Members)
{
    const tw_msg_settings_t settings = {10000, 262144, 16384, 3, "eth0"};
    for (uint32_t world : {1, 2, 5}) {
        Writer out;
        std::vector<tw_msg_member_t> members(world), seen(world);
        tw_msg_settings_t seen_settings;
        for (uint32_t r = 0; r < world; r++) {
            members[r] = {(int32_t)r - 1, ~(uint64_t)r, r * 5ull, "", 0, "", ""};
        }
        tw_msg_members_write(&settings, members.data(), world, &out.w);
        std::vector<uint8_t> payload = out.bytes();
        const Parse parse = [&](const uint8_t *in, size_t bytes) {
            return tw_msg_members_parse(in, bytes, world, &seen_settings, seen.data());
        };
        expect_exact(payload, parse);
        ASSERT_EQ(parse(payload.data(), payload.size()), TW_OK);
        EXPECT_EQ(seen_settings.peer_timeout_ms, settings.peer_timeout_ms);
        EXPECT_EQ(seen_settings.chunk_bytes, settings.chunk_bytes);
        EXPECT_EQ(seen_settings.eager_bytes, settings.eager_bytes);
        EXPECT_EQ(seen_settings.streams, settings.streams);
        EXPECT_STREQ(seen_settings.device, "eth0");
        for (uint32_t r = 0; r < world; r++) {
            EXPECT_EQ(seen[r].local_rank, members[r].local_rank);
            EXPECT_EQ(seen[r].node_id, members[r].node_id);
            EXPECT_EQ(seen[r].shm_id, members[r].shm_id);
        }
        EXPECT_EQ(
            tw_msg_members_parse(payload.data(), payload.size(), world + 1, &seen_settings, seen.data()),
            TW_ERR_FORMAT);
        payload[16 + TW_MSG_DEVICE_BYTES - 1] = 'x'; /* a name without an end */
        EXPECT_EQ(parse(payload.data(), payload.size()), TW_ERR_FORMAT);
    }
}

TEST(RendezvousMsg, Blobs)
{
    Writer out;
    const tw_msg_blob_t blobs[4] = {
        {(const uint8_t *)"one", 3}, {nullptr, 0}, {(const uint8_t *)"three", 5}, {nullptr, 0}};
    tw_msg_blob_t seen[4];
    uint32_t n = 0;
    tw_msg_blobs_write(blobs, 4, &out.w);
    std::vector<uint8_t> payload = out.bytes();
    const Parse parse = [&](const uint8_t *in, size_t bytes) {
        return tw_msg_blobs_parse(in, bytes, 4, seen, &n);
    };
    expect_exact(payload, parse);
    ASSERT_EQ(parse(payload.data(), payload.size()), TW_OK);
    ASSERT_EQ(n, 4u);
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(seen[i].bytes, blobs[i].bytes);
        EXPECT_TRUE(!blobs[i].bytes || !memcmp(seen[i].data, blobs[i].data, blobs[i].bytes));
    }
    EXPECT_EQ(tw_msg_blobs_parse(payload.data(), payload.size(), 3, seen, &n), TW_ERR_FORMAT);
    memset(payload.data() + 4, 0xff, 4); /* a length that wraps */
    EXPECT_EQ(parse(payload.data(), payload.size()), TW_ERR_FORMAT);
}

TEST(RendezvousMsg, NoticeIsCutAndPrintable)
{
    tw_msg_notice_t seen;
    for (size_t length : {0, 1, TW_MSG_TEXT_BYTES, TW_MSG_TEXT_BYTES + 1}) {
        Writer out;
        const std::string text(length, 'x');
        tw_msg_notice_write(-9, text.c_str(), &out.w);
        const std::vector<uint8_t> payload = out.bytes();
        ASSERT_EQ(tw_msg_notice_parse(payload.data(), payload.size(), &seen), TW_OK);
        EXPECT_EQ(seen.number, -9);
        EXPECT_EQ(seen.text, text.substr(0, TW_MSG_TEXT_BYTES));
    }
    const uint8_t odd[] = {1, 0, 0, 0, 'a', 0, '\n', 0x1b, 0xff, 'b'};
    ASSERT_EQ(tw_msg_notice_parse(odd, sizeof(odd), &seen), TW_OK);
    EXPECT_STREQ(seen.text, "a????b");
    EXPECT_EQ(tw_msg_notice_parse(odd, 3, &seen), TW_ERR_FORMAT);
    const std::vector<uint8_t> too_long(4 + TW_MSG_TEXT_BYTES + 1, 'x');
    EXPECT_EQ(tw_msg_notice_parse(too_long.data(), too_long.size(), &seen), TW_ERR_FORMAT);
}

/* A sign of life of somebody who is not late may be empty. */
TEST(RendezvousMsg, Heartbeat)
{
    const std::vector<uint8_t> bits(TW_MSG_HEARD_MAX, 0x81);
    for (uint32_t heard_bytes : {0u, 1u, 2u, TW_MSG_HEARD_MAX}) {
        Writer out;
        const tw_msg_heartbeat_t says = {3000000000u, heard_bytes, bits.data()};
        tw_msg_heartbeat_t seen = {};
        tw_msg_heartbeat_write(&says, &out.w);
        const std::vector<uint8_t> payload = out.bytes();
        ASSERT_EQ(tw_msg_heartbeat_parse(payload.data(), payload.size(), &seen), TW_OK);
        EXPECT_EQ(seen.late_ms, 3000000000u);
        ASSERT_EQ(seen.heard_bytes, heard_bytes);
        EXPECT_TRUE(heard_bytes == 0 || memcmp(seen.heard, bits.data(), heard_bytes) == 0);
    }
    tw_msg_heartbeat_t seen;
    for (size_t bytes : {size_t(1), size_t(2), size_t(3), size_t(5 + TW_MSG_HEARD_MAX)}) {
        const std::vector<uint8_t> other(bytes, 1);
        EXPECT_EQ(tw_msg_heartbeat_parse(other.data(), bytes, &seen), TW_ERR_FORMAT) << bytes;
    }
    EXPECT_EQ(tw_msg_heartbeat_parse(nullptr, 0, &seen), TW_OK);
    EXPECT_EQ(seen.late_ms, 0u);
    EXPECT_EQ(seen.heard_bytes, 0u);
}

TEST(RendezvousMsg, GoodbyeAndGone)
{
    Writer goodbye, gone;
    const uint64_t counts[3] = {0, 1ull << 40, 7};
    uint64_t seen[3], count = 0;
    uint32_t rank = 0;
    tw_msg_goodbye_write(counts, 3, &goodbye.w);
    std::vector<uint8_t> payload = goodbye.bytes();
    expect_exact(payload,
                 [&](const uint8_t *in, size_t bytes) { return tw_msg_goodbye_parse(in, bytes, 3, seen); });
    ASSERT_EQ(tw_msg_goodbye_parse(payload.data(), payload.size(), 3, seen), TW_OK);
    EXPECT_EQ(memcmp(seen, counts, sizeof(counts)), 0);
    EXPECT_EQ(tw_msg_goodbye_parse(payload.data(), payload.size(), 2, seen), TW_ERR_FORMAT);

    tw_msg_gone_write(5, 1ull << 50, &gone.w);
    payload = gone.bytes();
    expect_exact(payload, [&](const uint8_t *in, size_t bytes) {
        return tw_msg_gone_parse(in, bytes, &rank, &count);
    });
    ASSERT_EQ(tw_msg_gone_parse(payload.data(), payload.size(), &rank, &count), TW_OK);
    EXPECT_EQ(rank, 5u);
    EXPECT_EQ(count, 1ull << 50);
}

} // namespace
