#include "tests/gpu/rank.h"

#include <csignal>
#include <cstdio>

#include <sys/resource.h>

namespace tw::gpu
{

namespace
{

/* An error must have arrived by then. */
constexpr double death_sec = 20;
constexpr int n_replays = 2;

std::string failed(const char *what, tw_status_t status)
{
    return std::string(what) + ": " + tw_status_string(status);
}

/* A case's buffers on the GPU. */
class OnGpu
{
  public:
    OnGpu(RankGpu &the_gpu, const Case &c, RankBuffers *the_buffers)
        : gpu(the_gpu), buffers(the_buffers), asked(c, the_buffers, 1)
    {
        for (std::vector<Bytes> *all : {&buffers->src, &buffers->dst}) {
            for (const Bytes &bytes : *all) {
                if (!bytes.empty()) {
                    there[bytes.data()] = gpu.upload(bytes.data(), bytes.size());
                }
            }
        }
        for (tw_coll_segment_t &segment : asked.segments) {
            segment.src = place_of(segment.src);
            segment.dst = place_of(segment.dst);
        }
    }
    OnGpu(const OnGpu &) = delete;
    OnGpu &operator=(const OnGpu &) = delete;
    ~OnGpu()
    {
        for (const auto &each : there) {
            gpu.release(each.second);
        }
    }
    bool is_there() const
    {
        for (const auto &each : there) {
            if (each.second == nullptr) {
                return false;
            }
        }
        return true;
    }
    const tw_coll_args_t *args() const
    {
        return &asked.args;
    }
    tw_status_t poison()
    {
        tw_status_t status = TW_OK;
        for (const Bytes &bytes : buffers->dst) {
            if (status == TW_OK && !bytes.empty()) {
                status = gpu.fill(there[bytes.data()], 0xff, bytes.size());
            }
        }
        return status;
    }
    tw_status_t fetch()
    {
        tw_status_t status = TW_OK;
        for (Bytes &bytes : buffers->dst) {
            if (status == TW_OK && !bytes.empty()) {
                status = gpu.fetch(bytes.data(), there[bytes.data()], bytes.size());
            }
        }
        return status;
    }

  private:
    void *place_of(const void *host) const
    {
        const auto found = there.find(host);
        return found != there.end() ? found->second : nullptr;
    }

    RankGpu &gpu;
    RankBuffers *buffers;
    RankCase asked;
    std::map<const void *, void *> there;
};

class Rank
{
  public:
    Rank(const ProcessJob &the_job, RankGpu &the_gpu) : job(the_job), gpu(the_gpu)
    {
    }
    Rank(const Rank &) = delete;
    Rank &operator=(const Rank &) = delete;
    ~Rank()
    {
        tw_coll_destroy(on_gpu);
        tw_coll_destroy(on_cpu);
        tw_transport_destroy(transport);
    }

    tw_status_t join()
    {
        tw_job_t here;
        tw_status_t status = tw_job_from_env(&here);
        if (status == TW_OK) {
            status = tw_transport_create(&here, &transport);
        }
        const tw_coll_params_t params = tw::params_of(transport, nullptr);
        if (status == TW_OK) {
            status = tw_coll_create(&params, &on_cpu);
        }
        if (status == TW_OK) {
            status = gpu.create(job.over_nccl, transport, &on_gpu);
        }
        if (status == TW_OK && tw_coll_n_nodes(on_gpu) != (int)job.grid.size()) {
            status = TW_ERR_INTERNAL;
        }
        return status;
    }

    /* False when there is no going on. */
    bool run_all()
    {
        return run_cases(
            job.cases.size(), [this](size_t i) { return run(job.cases[i]); }, is_broken);
    }

  private:
    int rank() const
    {
        return tw_coll_rank(on_cpu);
    }
    int world() const
    {
        return tw_coll_size(on_cpu);
    }

    std::string run(const ProcessCase &each)
    {
        switch (each.kind) {
        case ProcessCase::compare:
        case ProcessCase::native:
            return run_once(each);
        case ProcessCase::graph:
            return run_graph(each.c);
        case ProcessCase::death:
            return run_death(each.c);
        }
        return "no such kind of case";
    }

    /* The operation as such; afterwards the others may be out of step. */
    std::string check(const char *what, tw_status_t status)
    {
        if (status == TW_OK) {
            return "";
        }
        is_broken = true;
        return failed(what, status);
    }
    tw_status_t post(const tw_coll_args_t *args, tw_coll_request_t **request)
    {
        tw_coll_args_t on = *args;
        on.stream = gpu.stream();
        return tw_coll_post(on_gpu, &on, request);
    }
    tw_status_t post_and_wait(const tw_coll_args_t *args)
    {
        tw_coll_request_t *request;
        tw_status_t status = post(args, &request);
        return status == TW_OK ? tw_coll_wait(request) : status;
    }
    /* What the CPU gets. */
    std::string expect(const Case &c, RankBuffers *want)
    {
        return check("the same on the CPU", tw::run_rank(on_cpu, c, want));
    }
    std::string compare(const Case &c, RankBuffers got, const RankBuffers &want) const
    {
        keep_shard(c, world(), rank(), &got);
        for (size_t s = 0; s < c.sizes.size(); s++) {
            if (got.dst[s].size() != want.dst[s].size()) {
                return "segment " + std::to_string(s) + ": " + std::to_string(got.dst[s].size()) +
                       " bytes, not " + std::to_string(want.dst[s].size());
            }
            for (size_t i = 0; i < got.dst[s].size(); i++) {
                if (got.dst[s][i] != want.dst[s][i]) {
                    return "segment " + std::to_string(s) + ", byte " + std::to_string(i) + " of " +
                           std::to_string(got.dst[s].size()) + ": not what the CPU gets";
                }
            }
        }
        return "";
    }
    /* Every sum is rounded to the tensor's type as often as there are ranks, and once to average. */
    std::string compare_sums(const Case &c, RankBuffers got) const
    {
        const double largest = 3.02 * (c.reduction == TW_COLL_MEAN ? 1 : world());
        const double bound = (world() + 2) * type_epsilon(c.type) * largest;
        keep_shard(c, world(), rank(), &got);
        for (size_t s = 0; s < c.sizes.size(); s++) {
            const std::vector<double> want = reduced(c, world(), s);
            const std::vector<float> values = to_floats(c.type, got.dst[s]);
            const size_t first = c.op == TW_COLL_ALLREDUCE ? 0 : first_of(c, world(), s, rank());
            for (size_t i = 0; i < values.size(); i++) {
                if (!(std::fabs(values[i] - want[first + i]) <= bound)) {
                    return "segment " + std::to_string(s) + ", element " + std::to_string(i) + ": " +
                           std::to_string(values[i]) + ", not " + std::to_string(want[first + i]) + " +- " +
                           std::to_string(bound);
                }
            }
        }
        return "";
    }

    std::string run_once(const ProcessCase &each)
    {
        Case c = each.c;
        RankBuffers got, want;
        prepare(c, world(), rank(), &got);
        OnGpu there(gpu, c, &got);
        if (!there.is_there()) {
            return check("memory on the GPU", TW_ERR_NO_MEMORY);
        }
        std::string wrong = check("on the GPU", post_and_wait(there.args()));
        if (wrong.empty()) {
            wrong = check("fetching the result", there.fetch());
        }
        if (wrong.empty() && each.kind == ProcessCase::native) {
            return compare_sums(c, got);
        }
        if (c.algo == "native") {
            c.algo = "direct";
        }
        if (wrong.empty()) {
            wrong = expect(c, &want);
        }
        return wrong.empty() ? compare(each.c, got, want) : wrong;
    }

    std::string run_graph(const Case &c)
    {
        RankBuffers got, want;
        std::string wrong = expect(c, &want), differs;
        prepare(c, world(), rank(), &got);
        OnGpu there(gpu, c, &got);
        if (wrong.empty() && !there.is_there()) {
            wrong = check("memory on the GPU", TW_ERR_NO_MEMORY);
        }
        if (wrong.empty()) { /* NCCL connects on first use, which cannot be captured */
            wrong = check("before the capture", post_and_wait(there.args()));
        }
        if (!wrong.empty()) {
            return wrong;
        }
        wrong = check("in a graph", gpu.replay([&] { return post(there.args(), nullptr); }, n_replays,
                                               [&] { return there.poison(); },
                                               [&] {
                                                   const tw_status_t status = there.fetch();
                                                   differs += compare(c, got, want);
                                                   return status;
                                               }));
        return wrong.empty() ? differs : wrong;
    }

    /* One operation; another, in which the others may hear already of what happens to the victim in the
     * third. */
    std::string run_death(const Case &c)
    {
        RankBuffers buffers;
        prepare(c, world(), rank(), &buffers);
        OnGpu there(gpu, c, &buffers);
        if (!there.is_there()) {
            return check("memory on the GPU", TW_ERR_NO_MEMORY);
        }
        tw_status_t status = post_and_wait(there.args());
        if (status != TW_OK) {
            return check("while all live", status);
        }
        tw_coll_request_t *request = nullptr;
        const double start_sec = tw_time_sec();
        status = post_and_wait(there.args());
        if (status == TW_OK) {
            status = post(there.args(), &request);
        }
        if (rank() == job.victim) {
            raise(SIGKILL);
        }
        if (status == TW_OK) {
            status = tw_coll_wait(request);
        }
        return check_death(there, status, tw_time_sec() - start_sec);
    }
    std::string check_death(const OnGpu &there, tw_status_t status, double sec)
    {
        char text[128];
        snprintf(text, sizeof(text), "%s after %.1f s", tw_status_string(status), sec);
        printf("rank %d: %s\n", rank(), text);
        if (status >= TW_OK) {
            return "the operation has ended well, although a rank was killed";
        }
        if (sec > death_sec) {
            return std::string("too late: ") + text;
        }
        if (post(there.args(), nullptr) == TW_OK) {
            return "another operation can be posted";
        }
        const int named = tw_transport_failed_rank(transport);
        if (!job.over_nccl && (status != TW_ERR_PEER || named != job.victim)) {
            return std::string(text) + ", and rank " + std::to_string(named) + " is named";
        }
        return "";
    }

    const ProcessJob &job;
    RankGpu &gpu;
    tw_transport_t *transport = nullptr;
    tw_coll_t *on_cpu = nullptr;
    tw_coll_t *on_gpu = nullptr;
    bool is_broken = false;
};

} // namespace

int run_rank(const ProcessJob &job, RankGpu &gpu)
{
    const rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    Rank rank(job, gpu);
    const tw_status_t status = rank.join();
    if (status != TW_OK) {
        printf("cannot join the job: %s\n", tw_status_string(status));
        return 1;
    }
    return rank.run_all() ? 0 : 1;
}

} // namespace tw::gpu
