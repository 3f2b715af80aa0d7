/* One rank. With REDIRECT, it opens the library as the net plugin does. */
#include "tests/plugin/interpose/job.h"
#include "tests/plugin/interpose/run.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <dlfcn.h>
#include <unistd.h>

namespace job
{

const Job &self()
{
    static const Job job = {atoi(getenv("RANK")), atoi(getenv("WORLD_SIZE")), atoi(getenv("PER_NODE"))};
    return job;
}

void fail(const char *file, int line, const char *condition, const std::string &why)
{
    fprintf(stderr, "rank %d: %s:%d: %s: %s\n", self().rank, file, line, condition, why.c_str());
    _exit(1);
}

ncclUniqueId share_id()
{
    static int n = 0;
    std::string path = std::string(getenv("STANDIN_DIR")) + "/id" + std::to_string(n++);
    ncclUniqueId id;
    if (self().rank == 0) {
        OK(ncclGetUniqueId(&id));
        std::ofstream(path + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
        CHECK(rename((path + ".new").c_str(), path.c_str()) == 0);
        return id;
    }
    for (int i = 0; access(path.c_str(), F_OK) != 0; i++) {
        CHECK_THAT(i < 30000, "rank 0 leaves no id");
        usleep(1000);
    }
    std::ifstream(path, std::ios::binary).read(id.internal, sizeof(id.internal));
    return id;
}

ncclComm_t join(ncclConfig_t *config)
{
    ncclComm_t comm = nullptr;
    ncclUniqueId id = share_id();
    if (config == nullptr) {
        OK(ncclCommInitRank(&comm, self().world, id, self().rank));
        return comm;
    }
    ncclResult_t result = ncclCommInitRankConfig(&comm, self().world, id, self().rank, config);
    CHECK(result == (config->blocking != 0 ? ncclSuccess : ncclInProgress));
    return comm;
}

cudaStream_t handle(standin::Stream &stream)
{
    return (cudaStream_t)&stream;
}

int reached(const char *name)
{
    static std::map<std::string, int> seen;
    int n = standin_calls(name), before = seen[name];
    seen[name] = n;
    return n - before;
}

void *find_in_library(const char *name)
{
    void *library = dlopen("libthinwire-nccl.so", RTLD_NOW | RTLD_NOLOAD);
    return library != nullptr ? dlsym(library, name) : nullptr;
}

/* How many places were changed is for the job to see; the redirected job is then as any other. */
static void redirect(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK_THAT(library != nullptr, dlerror());
    auto redirect = (int (*)(void))dlsym(library, "tw_nccl_redirect");
    CHECK(redirect != nullptr);
    int n = redirect();
    CHECK_THAT(n > 10, std::to_string(n) + " places");
    CHECK_THAT(redirect() == 0, "the second time there is nothing to change");
}

int run(int argc, char **argv)
{
    Scenarios all = calls_scenarios();
    all.merge(comms_scenarios());
    all.merge(loading_scenarios());
    if (argc != 2 || all.count(argv[1]) == 0 || getenv("RANK") == nullptr) {
        fprintf(stderr, "usage: job SCENARIO, with RANK, WORLD_SIZE and PER_NODE\n");
        return 2;
    }
    if (getenv("REDIRECT") != nullptr) {
        redirect(getenv("REDIRECT"));
    }
    all[argv[1]]();
    printf("ok\n");
    return 0;
}

} // namespace job
