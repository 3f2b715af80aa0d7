/* Ranks at a registry: who is there, who is not, and strangers. */
#include "plugin/interpose/registry.h"

#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/common/fixture.h"

namespace
{

class Registry : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        allow_descriptors("socket:"); /* the registry stays open, and lets its clients go in its own time */
    }
    static tw_ip_place_t place(uint8_t number)
    {
        tw_ip_place_t place = {};
        place.address[10] = place.address[11] = 0xff;
        place.address[12] = 127;
        place.address[15] = 1;
        memset(place.name, number, sizeof(place.name));
        memset(place.key, ~number, sizeof(place.key));
        return place;
    }
    static tw_ip_place_t open(uint8_t number)
    {
        tw_ip_place_t opened = place(number);
        EXPECT_EQ(tw_ip_registry_open(&opened), TW_OK);
        return opened;
    }
    static tw_ip_entry_t entry(uint32_t rank, uint32_t world)
    {
        return {.rank = rank, .world = world, .cannot = 0, .wait_ms = 0, .terms = 7, .process = 100 + rank};
    }
    static tw_ip_answer_t ask(const tw_ip_place_t &at, const tw_ip_entry_t &who)
    {
        tw_ip_answer_t answer = {};
        EXPECT_EQ(tw_ip_registry_ask(&at, &who, &answer), TW_OK);
        return answer;
    }
    static void register_all(const tw_ip_place_t &at, const std::vector<tw_ip_entry_t> &entries)
    {
        for (const tw_ip_entry_t &who : entries) {
            EXPECT_EQ(tw_ip_registry_register(&at, &who, 10), TW_OK);
        }
    }
    /* A connection, with some bytes. */
    static int knock(const tw_ip_place_t &at, const std::string &bytes)
    {
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_port = htons(at.port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(connect(fd, (sockaddr *)&address, sizeof(address)), 0);
        EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), (ssize_t)bytes.size());
        return fd;
    }
};

TEST_F(Registry, AllAreThere)
{
    const tw_ip_place_t at = open(1);
    register_all(at, {entry(2, 3), entry(0, 3), entry(1, 3), entry(1, 3)});
    for (uint32_t r = 0; r < 3; r++) {
        EXPECT_EQ(ask(at, entry(r, 3)).verdict, (uint32_t)TW_IP_ALL_HERE);
    }
}

TEST_F(Registry, WhoIsNotThereIsNamedAndComesTooLate)
{
    const tw_ip_place_t at = open(2);
    register_all(at, {entry(1, 4), entry(3, 4)});
    const tw_ip_answer_t answer = ask(at, entry(3, 4));
    EXPECT_EQ(answer.verdict, (uint32_t)TW_IP_NOT_ALL);
    EXPECT_STREQ(answer.said, "rank 0, 2: no interposer there");
    EXPECT_EQ(answer.speaker, 1u);
    register_all(at, {entry(0, 4), entry(2, 4)});
    EXPECT_EQ(ask(at, entry(0, 4)).verdict, (uint32_t)TW_IP_NOT_ALL) << "some have acted upon it";
}

TEST_F(Registry, OneThatIsAwaited)
{
    const tw_ip_place_t at = open(3);
    register_all(at, {entry(0, 2)});
    tw_ip_entry_t patient = entry(0, 2);
    patient.wait_ms = 60000;
    auto answer = std::async(std::launch::async, [&] { return ask(at, patient); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    register_all(at, {entry(1, 2)});
    EXPECT_EQ(answer.get().verdict, (uint32_t)TW_IP_ALL_HERE);
}

TEST_F(Registry, RanksThatDiffer)
{
    struct Case {
        tw_ip_entry_t second;
        tw_ip_verdict_t verdict;
        const char *said;
    };
    tw_ip_entry_t cannot = entry(1, 2), other_terms = entry(1, 2), same_process = entry(1, 2);
    cannot.cannot = 1;
    other_terms.terms = 8;
    same_process.process = entry(0, 2).process;
    tw_ip_entry_t same_rank = entry(0, 2);
    same_rank.process = 5;
    uint8_t number = 10;
    for (const Case &c : {Case{cannot, TW_IP_ONE_CANNOT, "rank 1 cannot"},
                          Case{other_terms, TW_IP_TERMS_DIFFER, "ranks 0 and 1 differ"},
                          Case{same_process, TW_IP_SHARED_PROCESS, "ranks 0 and 1 are one process"},
                          Case{entry(2, 3), TW_IP_TERMS_DIFFER, "different sizes"},
                          Case{same_rank, TW_IP_TERMS_DIFFER, "the same rank"}}) {
        const tw_ip_place_t at = open(number++);
        register_all(at, {entry(0, 2), c.second});
        const tw_ip_answer_t answer = ask(at, entry(0, 2));
        EXPECT_EQ(answer.verdict, (uint32_t)c.verdict) << c.said;
        EXPECT_NE(std::string(answer.said).find(c.said), std::string::npos) << answer.said;
    }
}

TEST_F(Registry, StrangersChangeNothing)
{
    const tw_ip_place_t at = open(4);
    std::vector<int> fds;
    for (const std::string &bytes : {std::string(), std::string(1, 'x'), std::string(4000, '\xff'),
                                     std::string((char *)at.name, 16) + std::string(300, 'x')}) {
        fds.push_back(knock(at, bytes));
    }
    tw_ip_place_t forged = at;
    forged.key[3] ^= 1;
    const tw_ip_entry_t who = entry(1, 2);
    EXPECT_EQ(tw_ip_registry_register(&forged, &who, 10), TW_ERR_NOT_FOUND) << "a wrong key";
    forged = at;
    forged.name[3] ^= 1;
    EXPECT_EQ(tw_ip_registry_register(&forged, &who, 10), TW_ERR_NOT_FOUND) << "no such meeting";
    register_all(at, {entry(0, 2)});
    EXPECT_STREQ(ask(at, entry(0, 2)).said, "rank 1: no interposer there");
    for (int fd : fds) {
        close(fd);
    }
}

/* On a network that has IPv6 alone. */
TEST_F(Registry, Ipv6)
{
    tw_ip_place_t at = place(6);
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 loopback = {};
    loopback.sin6_family = AF_INET6;
    loopback.sin6_addr = in6addr_loopback;
    const bool able = bind(fd, (sockaddr *)&loopback, sizeof(loopback)) == 0;
    close(fd);
    if (!able) {
        GTEST_SKIP() << "this machine has no IPv6";
    }
    memcpy(at.address, &in6addr_loopback, sizeof(at.address));
    ASSERT_EQ(tw_ip_registry_open(&at), TW_OK);
    register_all(at, {entry(0, 2), entry(1, 2)});
    EXPECT_EQ(ask(at, entry(0, 2)).verdict, (uint32_t)TW_IP_ALL_HERE);
}

TEST_F(Registry, NoRegistryThere)
{
    tw_ip_place_t at = open(5), nowhere = at;
    const tw_ip_entry_t who = entry(0, 2);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* a port that nobody listens at */
    sockaddr_in address = {};
    socklen_t bytes = sizeof(address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(fd, (sockaddr *)&address, sizeof(address)), 0);
    ASSERT_EQ(getsockname(fd, (sockaddr *)&address, &bytes), 0);
    nowhere.port = ntohs(address.sin_port);
    EXPECT_EQ(tw_ip_registry_register(&nowhere, &who, 10), TW_ERR_NOT_FOUND);
    tw_ip_answer_t answer;
    expect_log("cannot be reached any more");
    EXPECT_EQ(tw_ip_registry_ask(&nowhere, &who, &answer), TW_ERR_PEER)
        << "who has registered must not go on";
    close(fd);
}

/* The registry's process has no descriptor left for a moment. */
TEST_F(Registry, NoDescriptorsForAWhile)
{
    const tw_ip_place_t at = open(6);
    rlimit before, none;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    none = before;
    none.rlim_cur = (rlim_t)client_fd + 1;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(at.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client_fd, (sockaddr *)&address, sizeof(address)), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    register_all(at, {entry(0, 2), entry(1, 2)});
    EXPECT_EQ(ask(at, entry(1, 2)).verdict, (uint32_t)TW_IP_ALL_HERE);
    close(client_fd);
}

} // namespace
