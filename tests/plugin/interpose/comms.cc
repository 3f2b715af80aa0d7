/* How communicators come and go. */
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/plugin/interpose/job.h"

using standin::Stream;

namespace job
{

static std::vector<int> ranks_where(const std::function<bool(int)> &is_in)
{
    std::vector<int> ranks;
    for (int r : all_ranks()) {
        if (is_in(r)) {
            ranks.push_back(r);
        }
    }
    return ranks;
}

static void expect_right(ncclComm_t comm, const std::vector<int> &ranks, const char *codec)
{
    expect_gather(all_gather(comm, 4 * COUNT, ncclBfloat16), ranks, 4 * COUNT, ncclBfloat16, codec, true);
}

/** Inside a node nothing changes, between nodes it does; a parent goes on while it has children, and the
 *  other way round. */
static void split()
{
    ncclComm_t all = join(), node, rail, none;
    int per_node = self().per_node, own_node = self().rank / per_node, own_local = self().rank % per_node;
    OK(ncclCommSplit(all, own_node, self().rank, &node, nullptr));
    OK(ncclCommSplit(all, own_local, self().rank, &rail, nullptr));
    OK(ncclCommSplit(all, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    CHECK(none == nullptr);
    std::vector<int> of_node = ranks_where([&](int r) { return r / per_node == own_node; });
    std::vector<int> of_rail = ranks_where([&](int r) { return r % per_node == own_local; });
    expect_right(node, of_node, "");
    expect_right(rail, of_rail, "int8");
    expect_right(all, all_ranks(), "int8");
    OK(ncclCommFinalize(all));
    OK(ncclCommDestroy(all));
    expect_right(rail, of_rail, "int8");
    OK(ncclCommDestroy(rail));
    expect_right(node, of_node, "");
    OK(ncclCommDestroy(node));
}

/** Without the last rank, and with all again. */
static void shrink_and_grow()
{
    ncclComm_t all = join(), fewer = nullptr, grown = nullptr;
    ncclUniqueId id;
    int last = self().world - 1;
    id = share_id();
    expect_right(all, all_ranks(), "int8");
    if (self().rank != last) {
        OK(ncclCommShrink(all, &last, 1, &fewer, nullptr, 0));
        expect_right(fewer, ranks_where([&](int r) { return r != last; }), "int8");
    }
    OK(ncclCommGrow(fewer, self().world, &id, fewer != nullptr ? -1 : last, &grown, nullptr));
    expect_right(grown, all_ranks(), ""); /* its id is not brought by all ranks */
    OK(ncclCommDestroy(grown));
    OK(fewer != nullptr ? ncclCommDestroy(fewer) : ncclSuccess);
    OK(ncclCommDestroy(all));
}

/** Made in other ways: by several ids, by a configuration, in a group. */
static void other_ways()
{
    ncclComm_t comms[3] = {};
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    id = share_id();
    OK(ncclCommInitRankScalable(&comms[0], self().world, self().rank, 1, &id, nullptr));
    comms[1] = join(&config);
    id = share_id();
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comms[2], self().world, id, self().rank));
    OK(ncclGroupEnd());
    for (ncclComm_t comm : comms) {
        expect_right(comm, all_ranks(), "int8");
    }
    for (ncclComm_t comm : comms) {
        OK(ncclCommDestroy(comm));
    }
}

static void wait_for(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
    }
    OK(state);
}

/** A communicator that does not block is there when it says so, and learned with its first call, in a group
 *  or not. */
static void non_blocking()
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (bool in_group : {false, true}) {
        ncclComm_t comm = join(&config);
        wait_for(comm);
        Gather gather = all_gather(comm, COUNT, ncclBfloat16);
        Gather grouped = [&](const void *from, void *to, cudaStream_t stream) {
            OK(ncclGroupStart());
            OK(gather(from, to, stream));
            return ncclGroupEnd();
        };
        expect_gather(in_group ? grouped : gather, all_ranks(), COUNT, ncclBfloat16, "int8", false);
        OK(ncclCommDestroy(comm));
    }
}

/** The handle of one that has gone may be that of the next. */
static void again_and_again()
{
    for (int i = 0; i < 20; i++) {
        ncclComm_t comm = join();
        expect_right(comm, all_ranks(), "int8");
        OK(i % 2 == 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm));
    }
}

/** Rank 1 leaves without a word. The others' calls end, with NCCL's result, and a new communicator works. */
static void rank_leaves()
{
    ncclComm_t all = join();
    expect_right(all, all_ranks(), "int8");
    if (self().rank == 1) {
        printf("ok\n");
        fflush(stdout);
        _exit(0);
    }
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < 1000 && result == ncclSuccess; i++) {
        result = ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, all, handle(stream));
        stream.synchronize();
    }
    CHECK_THAT(result == ncclRemoteError, std::to_string(result));
    OK(ncclCommAbort(all));
}

static std::string sign(const char *name)
{
    return std::string(getenv("STANDIN_DIR")) + "/" + name;
}

/** Rank 1 makes its first call when a clock says that rank 0 has waited for hours. */
static void late_rank()
{
    ncclComm_t all = join();
    if (self().rank == 0) {
        standin_hook_next(
            "ncclCommGetAsyncError",
            [](void *) {
                double before = tw_time_sec();
                standin_clock_jump(10000);
                CHECK(tw_time_sec() - before > 9999);
                std::ofstream(sign("late")).put('.');
            },
            nullptr);
    }
    while (self().rank == 1 && access(sign("late").c_str(), F_OK) != 0) {
        usleep(1000);
    }
    expect_right(all, all_ranks(), "int8");
    OK(ncclCommDestroy(all));
}

/** Rank 1 is gone before its first call: whoever waits for it hears of it from NCCL. */
static void rank_never_comes()
{
    ncclComm_t all = join();
    if (self().rank == 1) {
        printf("ok\n");
        fflush(stdout);
        _exit(0);
    }
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    CHECK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, all, handle(stream)) ==
          ncclRemoteError);
    OK(ncclCommAbort(all));
}

/** Another thread gives up a call that waits for a rank that does not come. */
static void abort_while_waiting()
{
    ncclComm_t all = join();
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    expect_right(all, all_ranks(), "int8");
    if (self().rank == 0) {
        OK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, all, handle(stream)));
    }
    std::thread watchdog([&] {
        usleep(200000);
        OK(ncclCommAbort(all));
    });
    stream.synchronize();
    watchdog.join();
    ncclComm_t next = join();
    expect_right(next, all_ranks(), "int8");
    OK(ncclCommDestroy(next));
}

/** A communicator that is not learned yet: it was made in a group. */
static ncclComm_t join_in_group()
{
    ncclComm_t comm = nullptr;
    ncclUniqueId id = share_id();
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm, self().world, id, self().rank));
    OK(ncclGroupEnd());
    return comm;
}

/** Aborts a communicator from a thread of its own, as a watchdog does, when a call of NCCL's is under way in
 *  another. */
class Watchdog
{
  public:
    Watchdog(ncclComm_t guarded, const char *function) : comm(guarded)
    {
        standin_hook_next(function, bark, this);
    }
    ~Watchdog()
    {
        CHECK(thread.joinable());
        thread.join();
    }

  private:
    /* Whether it waits for the call or not, it has had the time for it. */
    static void bark(void *arg)
    {
        auto dog = (Watchdog *)arg;
        dog->thread = std::thread([dog] { OK(ncclCommAbort(dog->comm)); });
        usleep(200000);
    }
    ncclComm_t comm;
    std::thread thread;
};

/** Another thread aborts between the calls of NCCL's that one of ours is made of: while the ranks meet,
 *  between the messages of a group, between two groups, between two calls of the job's own group. NCCL never
 *  hears of the communicator again. */
static void abort_in_mid_call()
{
    std::vector<char> own = tensor(self().rank, 4 * COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    ncclComm_t other = join();
    for (std::string function : {"ncclAllGather", "ncclCommGetAsyncError", "ncclSend", "ncclGroupEnd"}) {
        bool meets = function == "ncclAllGather" || function == "ncclCommGetAsyncError";
        ncclComm_t comm = meets ? join_in_group() : join();
        Stream stream;
        if (!meets) {
            expect_right(comm, all_ranks(), "int8");
        }
        if (self().rank == 0) {
            Watchdog watchdog(comm, function.c_str());
            if (function == "ncclGroupEnd") {
                OK(ncclGroupStart());
                for (int i = 0; i < 3; i++) {
                    OK(ncclAllGather(own.data(), whole.data(), 4 * COUNT, ncclBfloat16, comm,
                                     handle(stream)));
                }
                CHECK(ncclGroupEnd() == ncclInternalError);
            } else {
                CHECK_THAT(ncclAllGather(own.data(), whole.data(), 4 * COUNT, ncclBfloat16, comm,
                                         handle(stream)) == ncclInternalError,
                           function);
            }
        }
        stream.synchronize();
        expect_right(other, all_ranks(), "int8"); /* rank 1 has stayed until here */
        OK(self().rank == 0 ? ncclSuccess : ncclCommAbort(comm));
    }
    OK(ncclCommDestroy(other));
}

/** What is revoked is left to NCCL, which refuses it. */
static void revoked()
{
    ncclComm_t all = join();
    expect_right(all, all_ranks(), "int8");
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    OK(ncclCommRevoke(all, 0));
    (void)reached("ncclAllGather");
    CHECK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, all, handle(stream)) ==
          ncclRemoteError);
    CHECK(reached("ncclAllGather") == 1);
    OK(ncclCommDestroy(all));
}

/** Ranks that are threads of one process, made together or each for itself: as NCCL does it. */
static void one_process()
{
    if (self().rank != 0) {
        return;
    }
    constexpr int n = 2;
    ncclComm_t together[n], apart[n];
    Stream streams[n];
    std::vector<char> own[n], all[n];
    ncclUniqueId id;
    OK(ncclCommInitAll(together, n, nullptr));
    OK(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; r++) {
        threads.emplace_back([&, r] { OK(ncclCommInitRank(&apart[r], n, id, r)); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (ncclComm_t *comms : {together, apart}) {
        OK(ncclGroupStart());
        for (int r = 0; r < n; r++) {
            own[r] = tensor(r, COUNT, ncclBfloat16);
            all[r].assign(own[r].size() * n, 0);
            OK(ncclAllGather(own[r].data(), all[r].data(), COUNT, ncclBfloat16, comms[r],
                             handle(streams[r])));
        }
        OK(ncclGroupEnd());
        for (int r = 0; r < n; r++) {
            streams[r].synchronize();
            CHECK(all[r] == gathered({0, 1}, COUNT, ncclBfloat16, ""));
            OK(ncclCommDestroy(comms[r]));
        }
    }
}

/** One thread has several ranks, and makes them in a group: two of three, the third is another process. */
static void one_thread()
{
    struct Member {
        int rank;
        ncclComm_t comm = nullptr;
        Stream stream;
        std::vector<char> own, all;
    };
    std::vector<std::unique_ptr<Member>> members;
    ncclUniqueId id = share_id();
    for (int r : {0, 1, 2}) {
        if ((r == 2) == (self().rank == 1)) {
            members.push_back(std::make_unique<Member>());
            members.back()->rank = r;
        }
    }
    OK(ncclGroupStart());
    for (auto &m : members) {
        OK(ncclCommInitRank(&m->comm, 3, id, m->rank));
    }
    OK(ncclGroupEnd());
    (void)reached("ncclAllGather");
    OK(ncclGroupStart());
    for (auto &m : members) {
        m->own = tensor(m->rank, COUNT, ncclBfloat16);
        m->all.assign(m->own.size() * 3, 0);
        OK(ncclAllGather(m->own.data(), m->all.data(), COUNT, ncclBfloat16, m->comm, handle(m->stream)));
    }
    OK(ncclGroupEnd());
    CHECK(reached("ncclAllGather") == (int)members.size());
    for (auto &m : members) {
        m->stream.synchronize();
        CHECK(m->all == gathered({0, 1, 2}, COUNT, ncclBfloat16, ""));
        OK(ncclCommDestroy(m->comm));
    }
}

/** What is never used has made no call of NCCL's. */
static void unused()
{
    std::vector<ncclComm_t> comms;
    for (int i = 0; i < 6; i++) {
        comms.push_back(i % 2 == 0 ? join() : nullptr);
        if (i % 2 != 0) {
            OK(ncclCommSplit(comms[0], 0, self().rank, &comms.back(), nullptr));
        }
    }
    for (const char *name :
         {"ncclAllGather", "ncclAllReduce", "ncclReduceScatter", "ncclSend", "ncclRecv", "ncclGroupStart"}) {
        CHECK_THAT(reached(name) == 0, name);
    }
    for (ncclComm_t comm : comms) {
        OK(ncclCommDestroy(comm));
    }
}

/** An all-reduce, bit by bit NCCL's. */
static void expect_sum(ncclComm_t comm)
{
    constexpr size_t count = 4 * COUNT;
    std::vector<float> sum(count), want(count);
    Stream stream;
    for (size_t i = 0; i < count; i++) {
        double exact = 0;
        for (int r : all_ranks()) {
            exact += (float)((int)(i % 1000) - 31 * r) / 7;
        }
        want[i] = (float)exact;
        sum[i] = (float)((int)(i % 1000) - 31 * self().rank) / 7;
    }
    OK(ncclAllReduce(sum.data(), sum.data(), count, ncclFloat32, ncclSum, comm, handle(stream)));
    stream.synchronize();
    CHECK(sum == want);
}

/** One or all of the ranks have what this needs, or one lacks it: nobody calls what the job does not. */
static void left_to_nccl()
{
    ncclComm_t all = join(), child = nullptr;
    OK(ncclCommSplit(all, 0, self().rank, &child, nullptr));
    (void)reached("ncclAllGather");
    (void)reached("ncclAllReduce");
    for (ncclComm_t comm : {all, child}) {
        expect_right(comm, all_ranks(), "");
        expect_sum(comm);
    }
    CHECK(reached("ncclAllGather") == 2 && reached("ncclAllReduce") == 2);
    OK(ncclCommDestroy(child));
    OK(ncclCommDestroy(all));
}

static void wait_for(ncclComm_t comm);

/** Children whose handle comes later follow their parent all the same. */
static void split_later()
{
    ncclComm_t all = join(), in_group = nullptr, in_background = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    OK(ncclGroupStart());
    OK(ncclCommSplit(all, 0, self().rank, &in_group, nullptr));
    OK(ncclGroupEnd());
    expect_right(in_group, all_ranks(), "int8");
    CHECK(ncclCommSplit(all, 0, self().rank, &in_background, &config) == ncclInProgress);
    OK(self().rank == 0 ? ncclCommDestroy(nullptr) : ncclSuccess); /* not the one that has no handle yet */
    wait_for(all);
    expect_right(in_background, all_ranks(), "int8");
    OK(ncclCommDestroy(in_group));
    OK(ncclCommDestroy(in_background));
    OK(ncclCommDestroy(all));
}

/** A place for a handle that is gone as soon as NCCL may not write to it any more. */
class Handle
{
  public:
    ncclComm_t *place() const
    {
        return at.get();
    }
    ncclComm_t take()
    {
        ncclComm_t comm = *at;
        at.reset();
        return comm;
    }

  private:
    std::unique_ptr<ncclComm_t> at = std::make_unique<ncclComm_t>();
};

/** Those that NCCL makes in the background of one that is there have its verdict, also where this process has
 *  communicators with another one. */
static void in_background()
{
    ncclComm_t all = join(), of_one = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = share_id();
    config.blocking = 0;
    OK(ncclCommInitAll(&of_one, 1, nullptr));
    Handle split, shrunk, grown, grouped, none;
    CHECK(ncclCommSplit(all, 0, self().rank, split.place(), &config) == ncclInProgress);
    wait_for(all);
    ncclComm_t children[] = {split.take(), nullptr, nullptr};
    CHECK(ncclCommShrink(all, nullptr, 0, shrunk.place(), &config, 0) == ncclInProgress);
    wait_for(all);
    children[1] = shrunk.take();
    OK(ncclGroupStart());
    OK(ncclCommSplit(all, 0, self().rank, grouped.place(), &config));
    CHECK(ncclGroupEnd() == ncclInProgress);
    wait_for(all);
    children[2] = grouped.take();
    CHECK(ncclCommGrow(all, self().world, &id, -1, grown.place(), &config) == ncclInProgress);
    wait_for(all);
    ncclComm_t more = grown.take();
    CHECK(ncclCommSplit(all, NCCL_SPLIT_NOCOLOR, 0, none.place(), &config) == ncclInProgress);
    wait_for(all);
    CHECK(none.take() == nullptr);
    for (ncclComm_t child : children) {
        expect_right(child, all_ranks(), "int8");
        OK(ncclCommDestroy(child));
    }
    expect_right(more, all_ranks(), "");
    OK(ncclCommDestroy(more));
    OK(ncclCommDestroy(of_one));
    OK(ncclCommDestroy(all));
}

/** Who looks at the handle alone may use it; who has moved it and asked nobody is told. */
static void in_background_unasked()
{
    ncclComm_t all = join();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t child = nullptr; /* its place is there until the parent has been asked, or ends */
    for (bool is_moved : {false, true}) {
        child = nullptr;
        CHECK(ncclCommSplit(all, 0, self().rank, &child, &config) == ncclInProgress);
        while (__atomic_load_n(&child, __ATOMIC_ACQUIRE) == nullptr) {
            usleep(1000);
        }
        if (!is_moved) {
            expect_right(child, all_ranks(), "int8");
            OK(ncclCommDestroy(child));
            continue;
        }
        Stream stream;
        std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                          whole(own.size() * (size_t)self().world);
        ncclComm_t moved = child;
        child = nullptr;
        CHECK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, moved, handle(stream)) ==
              ncclInvalidUsage);
        OK(ncclCommDestroy(moved));
    }
    OK(ncclCommDestroy(all));
}

/** A communicator per thread, at the same time. */
static void threads()
{
    ncclComm_t comms[3] = {join(), join(), join()};
    std::vector<std::thread> all;
    for (ncclComm_t comm : comms) {
        all.emplace_back([comm] {
            for (int i = 0; i < 10; i++) {
                expect_right(comm, all_ranks(), "int8");
            }
            OK(ncclCommDestroy(comm));
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
}

/** Meeting fails: that is the result of the call that needs it. */
static void meeting_fails()
{
    ncclComm_t comm = nullptr;
    ncclUniqueId id = share_id();
    OK(ncclCommInitRank(&comm, self().world, id, self().rank));
    standin_fail_next("ncclAllGather", ncclSystemError);
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    CHECK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, comm, handle(stream)) ==
          ncclSystemError);
    OK(ncclCommAbort(comm));
}

/** Making one fails in NCCL: its result. */
static void making_fails()
{
    ncclComm_t comm = nullptr;
    ncclUniqueId id = share_id();
    standin_fail_next("ncclCommInitRank", ncclInvalidUsage);
    CHECK(ncclCommInitRank(&comm, self().world, id, self().rank) == ncclInvalidUsage);
    comm = join();
    standin_fail_next("ncclSend", ncclInternalError);
    Stream stream;
    std::vector<char> own = tensor(self().rank, COUNT, ncclBfloat16),
                      whole(own.size() * (size_t)self().world);
    CHECK(ncclAllGather(own.data(), whole.data(), COUNT, ncclBfloat16, comm, handle(stream)) ==
          ncclInternalError);
    OK(ncclCommAbort(comm));
}

/** Each way past the net plugin is begun with twice; the calls are NCCL's. */
static void bypasses()
{
    ncclComm_t comm = join();
    ncclWindow_t window;
    char memory[64];
    for (int i = 0; i < 2; i++) {
        OK(ncclCommWindowRegister(comm, memory, sizeof(memory), &window, 0));
        OK(ncclDevCommCreate(comm, nullptr, nullptr));
        OK(ncclPutSignal(memory, 1, ncclInt8, 0, window, 0, 0, 0, 0, comm, nullptr));
        OK(ncclSignal(0, 0, 0, 0, comm, nullptr));
        OK(ncclWaitSignal(0, nullptr, comm, nullptr));
    }
    for (const char *name :
         {"ncclCommWindowRegister", "ncclDevCommCreate", "ncclPutSignal", "ncclSignal", "ncclWaitSignal"}) {
        CHECK_THAT(reached(name) == 2, name);
    }
    OK(ncclCommDestroy(comm));
}

/** A job that wants NCCL's sockets sealed: the net plugin hears of it. Later it does not. */
static void sealed()
{
    tw_ip_encryption_t config = {sizeof(config), 0, 0, TW_IP_ENCRYPTION_SECRET,
                                 "a secret of 32 bytes or of more"};
    OK(ncclSetEncryption((const ncclEncryptionConfig_t *)&config));
    ncclComm_t comm = join();
    config = {sizeof(config), 0, 0, TW_IP_ENCRYPTION_NONE, nullptr};
    OK(ncclSetEncryption((const ncclEncryptionConfig_t *)&config));
    ncclComm_t plain = join();
    CHECK(reached("ncclSetEncryption") == 2);
    OK(ncclCommDestroy(plain));
    OK(ncclCommDestroy(comm));
}

/** A child that was forked ends. */
static void forks()
{
    ncclComm_t comm = join();
    expect_right(comm, all_ranks(), "int8");
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(ncclCommDestroy(comm));
}

Scenarios comms_scenarios()
{
    return {
        {"split", split},
        {"shrink_and_grow", shrink_and_grow},
        {"other_ways", other_ways},
        {"non_blocking", non_blocking},
        {"again_and_again", again_and_again},
        {"rank_leaves", rank_leaves},
        {"late_rank", late_rank},
        {"rank_never_comes", rank_never_comes},
        {"abort_while_waiting", abort_while_waiting},
        {"abort_in_mid_call", abort_in_mid_call},
        {"revoked", revoked},
        {"one_process", one_process},
        {"one_thread", one_thread},
        {"unused", unused},
        {"left_to_nccl", left_to_nccl},
        {"split_later", split_later},
        {"in_background", in_background},
        {"in_background_unasked", in_background_unasked},
        {"threads", threads},
        {"meeting_fails", meeting_fails},
        {"making_fails", making_fails},
        {"bypasses", bypasses},
        {"sealed", sealed},
        {"forks", forks},
    };
}

} // namespace job
