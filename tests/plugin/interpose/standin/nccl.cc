/* An NCCL of host memory: messages over Unix sockets, a group's messages together, on the stream's thread.
 * Collectives are made of messages, exact, in rank order. */
#include "tests/plugin/interpose/standin/nccl.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "plugin/interpose/nccl_calls.h"
#include "plugin/nccl/abi/net.h"
#include "quant/quant.h"
#include "tests/plugin/interpose/standin/gpu.h"

using standin::Stream;
using standin::Work;

namespace
{

constexpr double MEET_SEC = 20;
constexpr size_t PATH_AT = 24, PATH_BYTES = 48; /* in an id */

[[noreturn]] void die(const std::string &what)
{
    fprintf(stderr, "stand-in nccl: %s\n", what.c_str());
    abort();
}

/* ---- what was called ----------------------------------------------------------------------------------- */

std::atomic<int> clock_ahead{0};

std::mutex calls_lock;
std::map<std::string, int> calls;
std::string failing;
ncclResult_t failing_result;
std::string hooked;
std::function<void()> hook;

void run_hook(const char *name)
{
    std::function<void()> to_run;
    {
        std::lock_guard<std::mutex> hold(calls_lock);
        if (hooked == name) {
            hooked.clear();
            to_run = hook;
        }
    }
    if (to_run) {
        to_run();
    }
}

/** Counts a call; what it shall return, if that was asked for. */
ncclResult_t note(const char *name)
{
    run_hook(name);
    std::lock_guard<std::mutex> hold(calls_lock);
    calls[name]++;
    if (failing == name) {
        failing.clear();
        return failing_result;
    }
    return ncclSuccess;
}

/* ---- communicators that there are ---------------------------------------------------------------------- */

std::mutex alive_lock;
std::set<const void *> alive;

void is_born(const void *comm)
{
    std::lock_guard<std::mutex> hold(alive_lock);
    alive.insert(comm);
}

/** False: it was not there. */
bool ends(const void *comm)
{
    std::lock_guard<std::mutex> hold(alive_lock);
    return alive.erase(comm) > 0;
}

/** Whoever calls with one that has ended may find anything there. */
void expect_alive(const char *name, const void *comm)
{
    std::lock_guard<std::mutex> hold(alive_lock);
    if (comm != nullptr && alive.count(comm) == 0) {
        die(std::string(name) + " of a communicator that has ended");
    }
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/** One direction of one message; a header says how long it is. */
struct Transfer {
    int peer;
    char *at;
    size_t bytes, done = 0;
    uint64_t header = 0;
    size_t header_done = 0;

    bool is_over() const
    {
        return header_done == sizeof(header) && done == bytes;
    }
};

} // namespace

struct ncclComm {
    int rank = 0, world = 0;
    std::string dir;
    std::vector<int> fds;
    std::vector<std::atomic<uint64_t>> sent;
    std::atomic<int> async{ncclSuccess}, ended{0};
    std::mutex turn_lock;
    std::condition_variable turn_changed;
    uint64_t next_ticket = 0, turn = 0;
    int n_children = 0, next_op = ncclNumOps;
    std::map<int, double> scales;
    std::map<int, ncclDataType_t> scale_types;
    std::thread joining;
    void *net = nullptr; /**< the net plugin's */
    tw_nccl_result_t (*close_net)(void *) = nullptr;

    explicit ncclComm(int n) : world(n), fds((size_t)n, -1), sent((size_t)n)
    {
    }
    ~ncclComm()
    {
        if (joining.joinable()) {
            joining.join();
        }
        for (int fd : fds) {
            if (fd >= 0) {
                close(fd);
            }
        }
        if (close_net != nullptr) {
            (void)close_net(net);
        }
    }

    /** Messages of all peers together. */
    ncclResult_t exchange(std::vector<Transfer> &sends, std::vector<Transfer> &receives);
    void fail(ncclResult_t why)
    {
        int fine = ncclSuccess;
        async.compare_exchange_strong(fine, why);
    }

  private:
    void keep(std::vector<Transfer> &sends, std::vector<Transfer> &receives) const;
    bool move_out(Transfer &t);
    bool move_in(Transfer &t);
};

/* False: the other side has gone. */
bool ncclComm::move_out(Transfer &t)
{
    while (!t.is_over()) {
        t.header = t.bytes;
        bool in_header = t.header_done < sizeof(t.header);
        const char *from = in_header ? (const char *)&t.header + t.header_done : t.at + t.done;
        size_t left = in_header ? sizeof(t.header) - t.header_done : t.bytes - t.done;
        ssize_t n = ::send(fds[(size_t)t.peer], from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        (in_header ? t.header_done : t.done) += (size_t)n;
    }
    return true;
}

bool ncclComm::move_in(Transfer &t)
{
    while (!t.is_over()) {
        bool in_header = t.header_done < sizeof(t.header);
        char *to = in_header ? (char *)&t.header + t.header_done : t.at + t.done;
        size_t left = in_header ? sizeof(t.header) - t.header_done : t.bytes - t.done;
        ssize_t n = ::recv(fds[(size_t)t.peer], to, left, MSG_DONTWAIT);
        if (n == 0) {
            return false;
        }
        if (n < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        (in_header ? t.header_done : t.done) += (size_t)n;
        if (in_header && t.header_done == sizeof(t.header) && t.header != t.bytes) {
            die("rank " + std::to_string(rank) + " expects " + std::to_string(t.bytes) + " bytes from rank " +
                std::to_string(t.peer) + ", which sends " + std::to_string(t.header));
        }
    }
    return true;
}

/* What a rank sends itself, in order. */
void ncclComm::keep(std::vector<Transfer> &sends, std::vector<Transfer> &receives) const
{
    const auto is_own = [this](const Transfer &t) { return t.peer == rank && !t.is_over(); };
    for (;;) {
        auto from = std::find_if(sends.begin(), sends.end(), is_own);
        auto to = std::find_if(receives.begin(), receives.end(), is_own);
        if (from == sends.end() && to == receives.end()) {
            return;
        }
        if (from == sends.end() || to == receives.end() || from->bytes != to->bytes) {
            die("rank " + std::to_string(rank) + " sends itself what it does not receive");
        }
        memcpy(to->at, from->at, to->bytes);
        from->header_done = to->header_done = sizeof(to->header);
        from->done = to->done = to->bytes;
    }
}

/* In order between two ranks: only the first message to or from a peer moves. */
ncclResult_t ncclComm::exchange(std::vector<Transfer> &sends, std::vector<Transfer> &receives)
{
    keep(sends, receives);
    for (;;) {
        std::vector<pollfd> waits;
        bool alive = true;
        for (std::vector<Transfer> *all : {&sends, &receives}) {
            std::vector<bool> seen((size_t)world);
            for (Transfer &t : *all) {
                if (t.is_over() || seen[(size_t)t.peer]) {
                    continue;
                }
                alive = alive && (all == &sends ? move_out(t) : move_in(t));
                seen[(size_t)t.peer] = !t.is_over();
                if (!t.is_over()) {
                    waits.push_back({fds[(size_t)t.peer], (short)(all == &sends ? POLLOUT : POLLIN), 0});
                }
            }
        }
        if (ended != 0 || !alive) {
            fail(alive ? ncclInternalError : ncclRemoteError);
            return ncclRemoteError;
        }
        if (waits.empty()) {
            return ncclSuccess;
        }
        poll(waits.data(), waits.size(), 20);
    }
}

namespace
{

/* ---- meeting ------------------------------------------------------------------------------------------- */

int new_socket(const std::string &path, sockaddr_un *address)
{
    *address = {};
    address->sun_family = AF_UNIX;
    if (path.size() >= sizeof(address->sun_path)) {
        die("too long a path: " + path);
    }
    strcpy(address->sun_path, path.c_str());
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

void join(ncclComm *comm)
{
    std::vector<std::string> at;
    double end = tw_time_sec() + MEET_SEC;
    for (int r = 0; r < comm->world; r++) {
        at.push_back(comm->dir + "." + std::to_string(r));
    }
    sockaddr_un address;
    int door = new_socket(at[(size_t)comm->rank], &address);
    if (bind(door, (sockaddr *)&address, sizeof(address)) != 0 || listen(door, comm->world) != 0) {
        die("cannot listen at " + at[(size_t)comm->rank] + ": " + strerror(errno));
    }
    for (int r = 0; r < comm->rank; r++) {
        int fd = new_socket(at[(size_t)r], &address);
        while (connect(fd, (sockaddr *)&address, sizeof(address)) != 0) {
            if (tw_time_sec() > end) {
                die("rank " + std::to_string(r) + " does not come");
            }
            usleep(2000);
        }
        uint32_t me = (uint32_t)comm->rank;
        if (write(fd, &me, sizeof(me)) != sizeof(me)) {
            die("a rank has gone");
        }
        comm->fds[(size_t)r] = fd;
    }
    for (int r = comm->rank + 1; r < comm->world; r++) {
        int fd = accept(door, nullptr, nullptr);
        uint32_t who = 0;
        if (fd < 0 || read(fd, &who, sizeof(who)) != sizeof(who) || who >= (uint32_t)comm->world) {
            die("a stranger came");
        }
        comm->fds[who] = fd;
    }
    close(door);
}

void log_line(tw_nccl_log_level_t, unsigned long, const char *, int, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "log of NCCL: %s\n", line);
}

tw_nccl_net_v11_t *find_net_plugin()
{
    const char *path = getenv("STANDIN_NET_PLUGIN");
    if (path == nullptr) {
        return nullptr;
    }
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    auto found = plugin != nullptr ? (tw_nccl_net_v11_t *)dlsym(plugin, "ncclNetPlugin_v11") : nullptr;
    return found != nullptr ? found : (die(std::string(path) + " is no plugin"), nullptr);
}

/** For each communicator, as NCCL does from 2.28 on. */
void open_net(ncclComm *comm)
{
    static tw_nccl_net_v11_t *plugin = find_net_plugin();
    tw_nccl_net_config_t config = {-1};
    if (plugin == nullptr) {
        return;
    }
    if (plugin->init(&comm->net, 1, &config, log_line, nullptr) != TW_NCCL_SUCCESS) {
        die("the net plugin does not begin");
    }
    comm->close_net = plugin->finalize;
}

thread_local int depth = 0;
thread_local bool goes_on = false; /* what the group does, in the background */
/** What a group does at its end, all at once: ranks of one thread meet there. */
thread_local std::vector<std::function<void()>> open_joins;

ncclResult_t create(ncclComm_t *out, int world, const std::string &dir, int rank, const ncclConfig_t *config)
{
    ncclComm *comm = new ncclComm(world);
    is_born(comm);
    open_net(comm);
    comm->rank = rank;
    comm->dir = dir;
    *out = comm;
    if (config == nullptr || config->blocking != 0) {
        if (depth > 0) {
            open_joins.push_back([comm] { join(comm); });
        } else {
            join(comm);
        }
        return ncclSuccess;
    }
    comm->async = ncclInProgress;
    comm->joining = std::thread([comm] {
        usleep(100000);
        join(comm);
        comm->async = ncclSuccess;
    });
    return ncclInProgress;
}

/* ---- operations ---------------------------------------------------------------------------------------- */

size_t size_of(ncclDataType_t type)
{
    static const std::map<int, size_t> sizes = {
        {ncclInt8, 1},   {ncclUint8, 1},   {ncclInt32, 4},   {ncclUint32, 4},  {ncclInt64, 8},
        {ncclUint64, 8}, {ncclFloat16, 2}, {ncclFloat32, 4}, {ncclFloat64, 8}, {ncclBfloat16, 2},
    };
    auto found = sizes.find(type);
    return found != sizes.end() ? found->second : 0;
}

double load(ncclDataType_t type, const char *at)
{
    float value = 0;
    switch (type) {
    case ncclFloat32:
        memcpy(&value, at, 4);
        return value;
    case ncclFloat16:
    case ncclBfloat16:
        tw_convert_to_fp32(type == ncclFloat16 ? TW_TYPE_FP16 : TW_TYPE_BF16, at, &value, 1);
        return value;
    case ncclInt32: {
        int32_t number;
        memcpy(&number, at, 4);
        return number;
    }
    default:
        die("no sums of type " + std::to_string(type));
    }
}

void store(ncclDataType_t type, double number, char *at)
{
    float value = (float)number;
    int32_t whole = (int32_t)number;
    if (type == ncclFloat32) {
        memcpy(at, &value, 4);
    } else if (type == ncclInt32) {
        memcpy(at, &whole, 4);
    } else {
        tw_convert_from_fp32(type == ncclFloat16 ? TW_TYPE_FP16 : TW_TYPE_BF16, &value, 1, at, 1);
    }
}

/** What a group does on one communicator and stream: messages, and then what is made of them. */
struct Batch {
    std::vector<Transfer> sends, receives;
    std::vector<Work> before, after;

    void send(int peer, const void *from, size_t bytes)
    {
        sends.push_back({peer, (char *)(uintptr_t)from, bytes});
    }
    void receive(int peer, void *to, size_t bytes)
    {
        receives.push_back({peer, (char *)to, bytes});
    }
};

using Build = std::function<void(ncclComm *, Batch *)>;

struct Op {
    ncclComm *comm;
    Stream *stream;
    Build build;
    bool is_message; /**< of ncclSend and ncclRecv: these come after the group's collectives */
};

thread_local std::vector<Op> open_ops;

void join_all()
{
    std::vector<std::thread> threads;
    for (const std::function<void()> &work : open_joins) {
        threads.emplace_back(work);
    }
    open_joins.clear();
    for (std::thread &thread : threads) {
        thread.join();
    }
}

/* Calls on one communicator happen in the order in which they were launched, on whatever streams. */
void run(ncclComm *comm, const std::vector<Build> &builds, uint64_t ticket)
{
    std::unique_lock<std::mutex> hold(comm->turn_lock);
    comm->turn_changed.wait(hold, [&] { return comm->turn == ticket; });
    hold.unlock();
    Batch batch;
    for (const Build &build : builds) {
        build(comm, &batch);
    }
    for (const Work &work : batch.before) {
        work();
    }
    if (comm->async == ncclSuccess && comm->exchange(batch.sends, batch.receives) == ncclSuccess) {
        for (const Transfer &t : batch.sends) {
            comm->sent[(size_t)t.peer] += t.bytes;
        }
        for (const Work &work : batch.after) {
            work();
        }
    }
    hold.lock();
    comm->turn++;
    comm->turn_changed.notify_all();
}

void launch_all(std::vector<Op> ops)
{
    for (const Op &op : ops) {
        expect_alive("ncclGroupEnd", op.comm);
    }
    std::vector<std::pair<std::pair<ncclComm *, Stream *>, std::vector<Build>>> groups;
    std::stable_partition(ops.begin(), ops.end(), [](const Op &op) { return !op.is_message; });
    for (const Op &op : ops) {
        auto key = std::make_pair(op.comm, op.stream);
        auto at = groups.begin();
        while (at != groups.end() && at->first != key) {
            at++;
        }
        if (at == groups.end()) {
            groups.push_back({key, {}});
            at = groups.end() - 1;
        }
        at->second.push_back(op.build);
    }
    for (const auto &group : groups) {
        ncclComm *comm = group.first.first;
        std::vector<Build> builds = group.second;
        group.first.second->launch([comm, builds] {
            std::lock_guard<std::mutex> hold(comm->turn_lock);
            uint64_t ticket = comm->next_ticket++;
            return [comm, builds, ticket] { run(comm, builds, ticket); };
        });
    }
}

ncclResult_t add(const char *name, ncclComm *comm, cudaStream_t stream, const Build &build,
                 bool is_message = false)
{
    ncclResult_t result = note(name);
    if (result != ncclSuccess) {
        return result;
    }
    if (comm == nullptr) {
        return ncclInvalidArgument;
    }
    expect_alive(name, comm);
    if (comm->async != ncclSuccess) {
        return comm->async == ncclInProgress ? ncclInvalidArgument : ncclRemoteError;
    }
    open_ops.push_back({comm, Stream::of(stream), build, is_message});
    if (depth == 0) {
        std::vector<Op> ops = std::move(open_ops);
        open_ops.clear();
        launch_all(ops);
    }
    return ncclSuccess;
}

/** Shards of every rank in `all`, one after another, each its rank's `own`. */
void gather(ncclComm *comm, Batch *batch, const char *own, char *all, size_t bytes)
{
    for (int r = 0; r < comm->world; r++) {
        char *to = all + (size_t)r * bytes;
        if (r != comm->rank) {
            batch->send(r, own, bytes);
            batch->receive(r, to, bytes);
        } else if (to != own) {
            batch->after.push_back([own, to, bytes] { memcpy(to, own, bytes); });
        }
    }
}

/** What the root has, for everybody. */
void broadcast(ncclComm *comm, Batch *batch, const char *from, char *to, size_t bytes, int root)
{
    if (comm->rank != root) {
        batch->receive(root, to, bytes);
        return;
    }
    for (int r = 0; r < comm->world; r++) {
        if (r != root) {
            batch->send(r, from, bytes);
        }
    }
    if (to != from) {
        batch->after.push_back([from, to, bytes] { memcpy(to, from, bytes); });
    }
}

/** Number `rank` of each: what the ranks have at `offset`, reduced in rank order. */
void reduce(ncclComm *comm, Batch *batch, const char *from, char *to, size_t count, ncclDataType_t type,
            ncclRedOp_t op, bool scatters)
{
    size_t bytes = count * size_of(type);
    auto all = std::make_shared<std::vector<char>>(bytes * (size_t)comm->world);
    for (int r = 0; r < comm->world; r++) {
        const char *piece = from + (scatters ? (size_t)r * bytes : 0);
        char *at = all->data() + (size_t)r * bytes;
        if (r == comm->rank) {
            batch->before.push_back([piece, at, bytes] { memcpy(at, piece, bytes); });
        } else {
            batch->send(r, piece, bytes);
            batch->receive(r, at, bytes);
        }
    }
    double scale = comm->scales.count(op) ? comm->scales[op] : 1;
    int world = comm->world;
    batch->after.push_back([all, to, count, type, op, scale, world] {
        size_t elem = size_of(type);
        for (size_t i = 0; i < count; i++) {
            double result = load(type, all->data() + i * elem);
            for (int r = 1; r < world; r++) {
                double next = load(type, all->data() + ((size_t)r * count + i) * elem);
                result = op == ncclMax   ? std::fmax(result, next)
                         : op == ncclMin ? std::fmin(result, next)
                                         : result + next;
            }
            store(type, op == ncclAvg ? result / world : result * scale, to + i * elem);
        }
    });
}

ncclResult_t all_gather(const char *name, const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream)
{
    if (from == nullptr || to == nullptr || size_of(type) == 0) {
        (void)note(name);
        return ncclInvalidArgument;
    }
    return add(name, comm, stream, [=](ncclComm *c, Batch *batch) {
        gather(c, batch, (const char *)from, (char *)to, count * size_of(type));
    });
}

ncclResult_t reduce_all(const char *name, const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, bool scatters)
{
    if (from == nullptr || to == nullptr || size_of(type) == 0) {
        (void)note(name);
        return ncclInvalidArgument;
    }
    if (comm != nullptr && comm->scale_types.count(op) && comm->scale_types[op] != type) {
        (void)note(name);
        return ncclInvalidArgument;
    }
    return add(name, comm, stream, [=](ncclComm *c, Batch *batch) {
        reduce(c, batch, (const char *)from, (char *)to, count, type, op, scatters);
    });
}

ncclResult_t all_to_all(const char *name, const void *from, void *to, size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream)
{
    size_t bytes = count * size_of(type);
    return add(name, comm, stream, [=](ncclComm *c, Batch *batch) {
        for (int r = 0; r < c->world; r++) {
            const char *piece = (const char *)from + (size_t)r * bytes;
            char *at = (char *)to + (size_t)r * bytes;
            if (r == c->rank) {
                batch->after.push_back([piece, at, bytes] { memcpy(at, piece, bytes); });
            } else {
                batch->send(r, piece, bytes);
                batch->receive(r, at, bytes);
            }
        }
    });
}

void record_launch(ncclResult_t result, const ncclCollConfig_t *config, cudaStream_t stream)
{
    const tw_ip_config_t *ours = (const tw_ip_config_t *)config;
    if (result == ncclSuccess && ours->launch_event != nullptr) {
        static_cast<standin::Event *>(ours->launch_event)->record(Stream::of(stream));
    }
}

} // namespace

/* ---- what is exported ---------------------------------------------------------------------------------- */

extern "C" {

/* For all that reads it, whatever it is linked with. */
int clock_gettime(clockid_t clock, timespec *now) noexcept
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += clock == CLOCK_MONOTONIC ? clock_ahead.load() : 0;
    return result;
}

void standin_clock_jump(int sec)
{
    clock_ahead += sec;
}

int standin_calls(const char *name)
{
    std::lock_guard<std::mutex> hold(calls_lock);
    return calls[name];
}

uint64_t standin_sent_bytes(ncclComm *comm, int peer)
{
    return comm->sent[(size_t)peer];
}

void standin_hook_next(const char *name, void (*function)(void *), void *arg)
{
    std::lock_guard<std::mutex> hold(calls_lock);
    hooked = name;
    hook = [function, arg] { function(arg); };
}

void standin_fail_next(const char *name, int result)
{
    std::lock_guard<std::mutex> hold(calls_lock);
    failing = name;
    failing_result = (ncclResult_t)result;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 23203;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t)
{
    return "";
}

/* A number, an address and a few words more, then zeros, as NCCL has it. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<int> n{0};
    const char *dir = getenv("STANDIN_DIR");
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memset(id, 0, sizeof(*id));
    memcpy(id->internal + 8, &address, sizeof(address));
    int length = snprintf(id->internal + PATH_AT, PATH_BYTES, "%s/%d-%d", dir != nullptr ? dir : "/tmp",
                          (int)getpid(), n++);
    if (length >= (int)PATH_BYTES) {
        die("too long a path: " + std::string(dir));
    }
    return note("ncclGetUniqueId");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclResult_t result = note("ncclCommInitRankConfig");
    return result == ncclSuccess ? create(comm, world, id.internal + PATH_AT, rank, config) : result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int world, ncclUniqueId id, int rank)
{
    ncclResult_t result = note("ncclCommInitRank");
    return result == ncclSuccess ? create(comm, world, id.internal + PATH_AT, rank, nullptr) : result;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int world, int rank, int, ncclUniqueId *ids,
                                      ncclConfig_t *config)
{
    ncclResult_t result = note("ncclCommInitRankScalable");
    return result == ncclSuccess ? create(comm, world, ids[0].internal + PATH_AT, rank, config) : result;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *)
{
    ncclResult_t result = note("ncclCommInitAll");
    ncclUniqueId id;
    std::vector<std::thread> ranks;
    (void)ncclGetUniqueId(&id);
    for (int r = 0; r < n && result == ncclSuccess; r++) {
        ranks.emplace_back([=] { (void)create(&comms[r], n, id.internal + PATH_AT, r, nullptr); });
    }
    for (std::thread &rank : ranks) {
        rank.join();
    }
    return result;
}

/* One that comes of another. The handle is there when all is done: in a group, when that ends; without
 * blocking, some time later. */
static ncclResult_t derive(ncclComm_t parent, ncclComm_t *out, const ncclConfig_t *config,
                           const std::function<ncclResult_t(ncclComm_t *)> &make)
{
    bool blocks = config == nullptr || config->blocking != 0;
    const auto in_background = [=] {
        if (parent->joining.joinable()) {
            parent->joining.join();
        }
        parent->async = ncclInProgress;
        parent->joining = std::thread([=] {
            ncclComm_t made = nullptr;
            usleep(50000);
            (void)make(&made);
            __atomic_store_n(out, made, __ATOMIC_RELEASE);
            parent->async = ncclSuccess;
        });
    };
    *out = nullptr;
    if (depth > 0) {
        goes_on = goes_on || !blocks;
        open_joins.push_back(blocks ? std::function<void()>([=] { (void)make(out); }) : in_background);
        return ncclSuccess;
    }
    if (blocks) {
        return make(out);
    }
    in_background();
    return ncclInProgress;
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *out);

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    return derive(comm, out, config, [=](ncclComm_t *at) { return split(comm, color, key, at); });
}

/* A short exchange when nothing else is under way. */
static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *out)
{
    struct Wish {
        int color, key;
    };
    ncclResult_t result = note("ncclCommSplit");
    std::vector<Wish> wishes((size_t)comm->world);
    Wish own = {color, key};
    Batch batch;
    gather(comm, &batch, (const char *)&own, (char *)wishes.data(), sizeof(own));
    if (result == ncclSuccess) {
        result = comm->exchange(batch.sends, batch.receives);
    }
    wishes[(size_t)comm->rank] = own;
    int n = comm->n_children++, world = 0, rank = 0;
    *out = nullptr;
    if (result != ncclSuccess || color == NCCL_SPLIT_NOCOLOR) {
        return result;
    }
    for (int r = 0; r < comm->world; r++) {
        bool is_in = wishes[(size_t)r].color == color;
        world += is_in;
        rank += is_in && (wishes[(size_t)r].key < key || (wishes[(size_t)r].key == key && r < comm->rank));
    }
    return create(out, world, comm->dir + "-" + std::to_string(n) + "c" + std::to_string(color), rank,
                  nullptr);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n_excluded, ncclComm_t *out,
                            ncclConfig_t *config, int)
{
    ncclResult_t result = note("ncclCommShrink");
    int rank = comm->rank;
    for (int i = 0; i < n_excluded; i++) {
        rank -= excluded[i] < comm->rank;
    }
    std::string dir = comm->dir + "-" + std::to_string(comm->n_children++) + "s";
    return result != ncclSuccess ? result : derive(comm, out, config, [=](ncclComm_t *at) {
        return create(at, comm->world - n_excluded, dir, rank, nullptr);
    });
}

/* All ranks bring the id; NCCL's own asks it of the new ones and of one other. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int world, const ncclUniqueId *id, int rank, ncclComm_t *out,
                          ncclConfig_t *config)
{
    ncclResult_t result = note("ncclCommGrow");
    std::string dir = id->internal + PATH_AT;
    if (result != ncclSuccess || comm == nullptr) {
        return result == ncclSuccess ? create(out, world, dir, rank, config) : result;
    }
    return derive(comm, out, config,
                  [=](ncclComm_t *at) { return create(at, world, dir, comm->rank, nullptr); });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *n)
{
    expect_alive("ncclCommCount", comm);
    *n = comm->world;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    expect_alive("ncclCommUserRank", comm);
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    run_hook("ncclCommGetAsyncError");
    expect_alive("ncclCommGetAsyncError", comm);
    *error = (ncclResult_t)comm->async.load();
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t)
{
    return note("ncclCommFinalize");
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int)
{
    comm->ended = 1;
    comm->fail(ncclInternalError);
    return note("ncclCommRevoke");
}

/* What was launched ends first. */
static void wait_for_turns(ncclComm *comm)
{
    std::unique_lock<std::mutex> hold(comm->turn_lock);
    comm->turn_changed.wait(hold, [&] { return comm->turn == comm->next_ticket; });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t result = note("ncclCommDestroy");
    if (!comm) { /* as NCCL's */
        return result;
    }
    wait_for_turns(comm);
    (void)ends(comm);
    delete comm;
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclResult_t result = note("ncclCommAbort");
    if (!comm) { /* as NCCL's */
        return result;
    }
    comm->ended = 1;
    wait_for_turns(comm);
    (void)ends(comm);
    delete comm;
    return result;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *window, int)
{
    *window = nullptr;
    return note("ncclCommWindowRegister");
}

/* Data that is moved so is nobody's here: these are only counted. */
ncclResult_t ncclDevCommCreate(ncclComm_t, const struct ncclDevCommRequirements *, struct ncclDevComm *)
{
    return note("ncclDevCommCreate");
}

ncclResult_t ncclPutSignal(const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                           unsigned int, ncclComm_t, cudaStream_t)
{
    return note("ncclPutSignal");
}

ncclResult_t ncclSignal(int, int, int, unsigned int, ncclComm_t, cudaStream_t)
{
    return note("ncclSignal");
}

ncclResult_t ncclWaitSignal(int, ncclWaitSignalDesc_t *, ncclComm_t, cudaStream_t)
{
    return note("ncclWaitSignal");
}

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t *)
{
    return note("ncclSetEncryption");
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm)
{
    *op = (ncclRedOp_t)comm->next_op++;
    comm->scales[*op] = load(type, (const char *)scalar);
    comm->scale_types[*op] = type;
    return note("ncclRedOpCreatePreMulSum");
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    comm->scales.erase(op);
    return note("ncclRedOpDestroy");
}

ncclResult_t ncclGroupStart(void)
{
    depth++;
    return note("ncclGroupStart");
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = note("ncclGroupEnd");
    if (depth == 0) {
        return ncclInvalidUsage;
    }
    if (--depth == 0) {
        std::vector<Op> ops = std::move(open_ops);
        open_ops.clear();
        join_all();
        if (result == ncclSuccess) {
            launch_all(ops);
            result = goes_on ? ncclInProgress : ncclSuccess;
        }
        goes_on = false;
    }
    return result;
}

ncclResult_t ncclGroupSimulateEnd(tw_ip_sim_info_t *)
{
    ncclResult_t result = note("ncclGroupSimulateEnd");
    if (depth > 0 && --depth == 0) {
        open_ops.clear();
    }
    return result;
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    size_t bytes = count * size_of(type);
    return add(
        "ncclSend", comm, stream, [=](ncclComm *, Batch *batch) { batch->send(peer, from, bytes); }, true);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    size_t bytes = count * size_of(type);
    return add(
        "ncclRecv", comm, stream, [=](ncclComm *, Batch *batch) { batch->receive(peer, to, bytes); }, true);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return all_gather("ncclAllGather", from, to, count, type, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return reduce_all("ncclReduceScatter", from, to, count, type, op, comm, stream, true);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return reduce_all("ncclAllReduce", from, to, count, type, op, comm, stream, false);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add("ncclBroadcast", comm, stream, [=](ncclComm *c, Batch *batch) {
        broadcast(c, batch, (const char *)from, (char *)to, count * size_of(type), root);
    });
}

/* As an all-reduce whose result is for one. */
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    auto unused = std::make_shared<std::vector<char>>(count * size_of(type));
    return add("ncclReduce", comm, stream, [=](ncclComm *c, Batch *batch) {
        char *at = c->rank == root ? (char *)to : unused->data();
        reduce(c, batch, (const char *)from, at, count, type, op, false);
        batch->after.push_back([unused] {});
    });
}

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    return all_to_all("ncclAlltoAll", from, to, count, type, comm, stream);
}

ncclResult_t ncclAllGatherConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    ncclResult_t result = all_gather("ncclAllGatherConfig", from, to, count, type, comm, stream);
    record_launch(result, config, stream);
    return result;
}

ncclResult_t ncclReduceScatterConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t *config)
{
    ncclResult_t result =
        reduce_all("ncclReduceScatterConfig", from, to, count, type, op, comm, stream, true);
    record_launch(result, config, stream);
    return result;
}

ncclResult_t ncclAllReduceConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t *config)
{
    ncclResult_t result = reduce_all("ncclAllReduceConfig", from, to, count, type, op, comm, stream, false);
    record_launch(result, config, stream);
    return result;
}

ncclResult_t ncclAlltoAllConfig(const void *from, void *to, size_t count, ncclDataType_t type,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
    ncclResult_t result = all_to_all("ncclAlltoAllConfig", from, to, count, type, comm, stream);
    record_launch(result, config, stream);
    return result;
}
}
