/* Checkpoints beside training: a rank whose disk is slow, and one whose device fails when all go on. */
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/common/fixture.h"
#include "tests/trainer/device/emulated.h"
#include "tests/trainer/engine/params.h"
#include "tests/trainer/engine/ranks.h"
#include "trainer/device/device.h"
#include "trainer/persist.h"

/* ---- rank 1's disk ------------------------------------------------------------------------------------- */

static std::atomic<bool> is_held{false};  /* it takes nothing */
static std::atomic<bool> is_asked{false}; /* it has been asked to */

static bool is_slow(FILE *file)
{
    const std::string link = "/proc/self/fd/" + std::to_string(fileno(file));
    char path[PATH_MAX];
    const ssize_t n = readlink(link.c_str(), path, sizeof(path) - 1);
    return n > 0 && std::string(path, (size_t)n).find("/shard-00001.") != std::string::npos;
}

/* In place of the system's. */
extern "C" size_t fwrite(const void *from, size_t size, size_t n, FILE *file)
{
    static const auto real = (size_t(*)(const void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fwrite");
    if (is_held && is_slow(file)) {
        is_asked = true;
        while (is_held) {
            usleep(1000);
        }
    }
    return real(from, size, n, file);
}

/* So many files of a checkpoint can still be opened by this thread; -1: all. */
static thread_local int opens_left = -1;

extern "C" int open(const char *path, int flags, ...)
{
    static const auto real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    const mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (opens_left >= 0 && strstr(path, "/step-") && opens_left-- == 0) {
        opens_left = 0;
        errno = EIO;
        return -1;
    }
    return real(path, flags, mode);
}

namespace
{

using Sets = std::vector<std::string>;

class Disks : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        folder_ = ::testing::TempDir() + "disks." + std::to_string(getpid());
        clear();
    }
    void TearDown() override
    {
        clear();
        tw::Fixture::TearDown();
    }
    void clear()
    {
        is_held = is_asked = false;
        ASSERT_EQ(0, system(("rm -rf " + folder_).c_str()));
    }

    /* A rank that can leave checkpoints and go on from them. */
    struct Rank : tw::Params {
        Rank(const Sets &sets, tw_coll_t *coll, tw_device_t *device = nullptr)
            : Params(sets, coll, [device](const tw_model_config_t *of, tw_model_t **out) {
                  return device ? tw_device_model_create(of, device, out) : tw_model_create(of, out);
              })
        {
            persist.config = config;
            persist.options = options;
            persist.model = params.model;
            persist.data = params.data;
            persist.id = 7;
            persist.is_new = 1;
            params.hooks = tw_persist_hooks(&persist);
            EXPECT_EQ(tw_engine_create(&params, &engine), TW_OK);
            persist.engine = engine;
            EXPECT_EQ(tw_persist_init(&persist, coll), TW_OK);
        }
        ~Rank()
        {
            tw_persist_cleanup(&persist);
            tw_engine_destroy(engine);
        }
        Rank(const Rank &) = delete;
        Rank &operator=(const Rank &) = delete;

        tw_status_t step()
        {
            tw_trainer_step_t done;
            return tw_engine_step(engine, &done);
        }

        tw_engine_t *engine = nullptr;
        tw_persist_t persist = {};
    };

    Sets sets(const Sets &more = {}) const
    {
        Sets all = {"thinwire.checkpoint=" + folder_, "thinwire.checkpoint_every=1",
                    "zero_optimization.stage=3"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }

    void leave_checkpoint()
    {
        tw::run_ranks({0, 1}, [&](int, tw_coll_t *coll) {
            Rank of(sets(), coll);
            EXPECT_EQ(of.step(), TW_OK);
            EXPECT_EQ(tw_persist_step_done(&of.persist), TW_OK);
            EXPECT_EQ(tw_persist_finish(&of.persist), TW_OK);
        });
    }

    std::string folder_;
};

/* Before anything changes, all wait for the one whose file does not have it yet; not in the operations of the
 * update, which have a limit. */
TEST_F(Disks, ASlowOneIsWaitedForBeforeTheUpdate)
{
    std::atomic<bool> was_held{false};
    is_held = true;
    std::thread disk([] {
        while (!is_asked) {
            usleep(1000);
        }
        usleep(100000); /* who does not wait has gone on by now */
        is_held = false;
    });
    tw::run_ranks({0, 1}, [&](int, tw_coll_t *coll) {
        Rank of(sets(), coll);
        EXPECT_EQ(of.step(), TW_OK);
        EXPECT_EQ(tw_persist_step_done(&of.persist), TW_OK);
        while (!is_asked) {
            usleep(1000);
        }
        EXPECT_EQ(of.step(), TW_OK);
        EXPECT_EQ(tw_engine_steps_done(of.engine), 2u);
        was_held = was_held || is_held;
        EXPECT_EQ(tw_persist_finish(&of.persist), TW_OK);
    });
    disk.join();
    EXPECT_FALSE(was_held);
    EXPECT_EQ(access((folder_ + "/step-00000001/manifest.json").c_str(), F_OK), 0);
}

/* A disk that hangs is named by its own rank and by those that wait for it, and waited for all the same. */
TEST_F(Disks, OneThatHangsIsNamed)
{
    is_held = true;
    const std::string hangs =
        "rank 1: " + folder_ + "/step-00000001.tmp/shard-00001.safetensors: the disk has not taken it ";
    expect_log(hangs);
    expect_log("rank 0: allgather (");
    expect_log("from rank 1");
    std::thread disk([&] {
        /* Until both have said so; 60 s end a test in which one never does. */
        for (int i = 0; i < 60000 && !(log_count(hangs) && log_count("from rank 1")); i++) {
            usleep(1000);
        }
        is_held = false;
    });
    tw::run_ranks({0, 1}, [&](int, tw_coll_t *world) {
        Rank of(sets(), world);
        EXPECT_EQ(of.step(), TW_OK);
        EXPECT_EQ(tw_persist_step_done(&of.persist), TW_OK);
        tw_coll_timeout_set(of.persist.own, 0.05);
        while (!is_asked) {
            usleep(1000);
        }
        EXPECT_EQ(of.step(), TW_OK);
        tw_coll_timeout_set(of.persist.own, 100);
        EXPECT_EQ(tw_persist_finish(&of.persist), TW_OK);
    });
    disk.join();
    EXPECT_EQ(access((folder_ + "/step-00000001/manifest.json").c_str(), F_OK), 0);
}

/* Who waits so hears at once of a rank that gives up. */
TEST_F(Disks, WhoWaitsForOneHearsOfADeath)
{
    is_held = true;
    allow_log("gave the job up");
    tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
        Rank of(sets(), coll);
        EXPECT_EQ(of.step(), TW_OK);
        EXPECT_EQ(tw_persist_step_done(&of.persist), TW_OK);
        if (rank == 0) {
            EXPECT_EQ(of.step(), TW_ERR_PEER);
        } else {
            std::thread dies([&] {
                while (!is_asked) {
                    usleep(1000);
                }
                usleep(20000);
                tw_coll_abort(coll);
                is_held = false;
            });
            EXPECT_NE(of.step(), TW_OK);
            dies.join();
        }
    });
}

/* Whichever file of a checkpoint it is that one rank cannot read, all end, and are told whose and which. */
TEST_F(Disks, AFileThatOneRankCannotReadEndsAll)
{
    leave_checkpoint();
    allow_log("Input/output error");
    expect_log("/step-00000001/shard-0000");
    expect_log("rank 0: rank 1 cannot resume, and says why itself: ");
    std::vector<tw_status_t> statuses(2, TW_ERR_IO);
    int n_opened = 0;
    for (; statuses[0] != TW_OK && n_opened < 20; n_opened++) {
        tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
            Rank of(sets({"thinwire.resume=" + folder_ + "/step-00000001"}), coll);
            opens_left = rank == 1 ? n_opened : -1;
            statuses[(size_t)rank] = tw_persist_restore(&of.persist);
            opens_left = -1;
        });
        EXPECT_EQ(statuses[0], statuses[1]) << n_opened;
    }
    EXPECT_EQ(statuses[0], TW_OK);
    EXPECT_GT(n_opened, 2); /* a shard of each rank */
}

/* The first copies after all have read their files. */
TEST_F(Disks, ADeviceThatFailsIsEverybodys)
{
    leave_checkpoint();
    expect_log("emulated: a copy failed");
    expect_log("rank 0: rank 1 cannot resume, and says why itself: ");
    tw::run_ranks({0, 1}, [&](int rank, tw_coll_t *coll) {
        tw::EmulatedDevice device((uint32_t)rank + 1);
        Rank of(sets({"thinwire.resume=" + folder_}), coll, device.table());
        device.copies_left = rank == 1 ? 0 : -1;
        EXPECT_EQ(tw_persist_restore(&of.persist), TW_ERR_CUDA);
        EXPECT_FALSE(of.persist.is_alone);
        device.copies_left = -1;
    });
}

} // namespace
