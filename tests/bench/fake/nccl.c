/* An NCCL of the version that FAKE_NCCL_VERSION says. */
#include <stdlib.h>

int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
    const char *text = getenv("FAKE_NCCL_VERSION");

    *version = text ? atoi(text) : 22809;
    return 0;
}
