/* Reports how the program was built: version, compiler, optional parts. */
#include "bench/info/info.h"

#include <ucp/api/ucp.h>

#include "transport/p2p.h"
#include "transport/transport.h"

/* Set by the build: the configuration (default, release, asan, ...) and the compilation mode. */
#ifndef TW_BUILD_CONFIG
#define TW_BUILD_CONFIG "unknown"
#endif

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#ifdef TW_HAVE_CUDA
#define HAVE_CUDA 1
#else
#define HAVE_CUDA 0
#endif

#ifdef TW_HAVE_NCCL
#define HAVE_NCCL 1
#else
#define HAVE_NCCL 0
#endif

static void ucx(info_report_t *report)
{
    char built[32], version[32];
    snprintf(built, sizeof(built), "%d.%d", UCP_API_MAJOR, UCP_API_MINOR);
    info_begin(report, "ucx", NULL);
    info_text(report, "version", tw_p2p_ucx_version(version, sizeof(version)));
    info_text(report, "built_for", built);
    info_text(report, "memory", tw_transport_ucx_knows(TW_MEM_CUDA) ? "host cuda" : "host");
    info_end(report);
}

void info_build(info_report_t *report)
{
    info_begin(report, "build", NULL);
    info_text(report, "version", TW_VERSION);
    info_text(report, "config", TW_BUILD_CONFIG);
    info_text(report, "compiler", COMPILER);
    info_bool(report, "cuda", HAVE_CUDA);
    info_bool(report, "nccl", HAVE_NCCL);
    info_end(report);
    ucx(report);
}
