/* The job's program. With REDIRECT, it opens the library as the net plugin does. */
#include "tests/plugin/interpose/run.h"

#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

#include "tests/plugin/interpose/job.h"

namespace job
{

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
