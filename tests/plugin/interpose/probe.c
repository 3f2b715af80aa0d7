/* A program that calls NCCL where there is no GPU: what NCCL answers then has to come through as it is. */
#include <stdio.h>
#include <stdlib.h>

#include "plugin/interpose/nccl_calls.h"

#define EXPECT(call, want)                                            \
    do {                                                              \
        ncclResult_t got = (call);                                    \
        if (got != (want)) {                                          \
            printf("%s: %d, not %d\n", #call, (int)got, (int)(want)); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

int main(void)
{
    float memory[4] = {0};
    ncclComm_t comm = NULL;
    ncclUniqueId id = {{0}};
    int version = 0;

    EXPECT(ncclGetVersion(&version), ncclSuccess);
    EXPECT(ncclGroupStart(), ncclSuccess);
    EXPECT(ncclGroupEnd(), ncclSuccess);
    EXPECT(ncclAllGather(memory, memory, 1, ncclFloat32, NULL, NULL), ncclInvalidArgument);
    EXPECT(ncclReduceScatter(memory, memory, 1, ncclFloat32, ncclSum, NULL, NULL), ncclInvalidArgument);
    EXPECT(ncclAllReduce(memory, memory, 1, ncclFloat32, ncclAvg, NULL, NULL), ncclInvalidArgument);
    EXPECT(ncclCommDestroy(NULL), ncclSuccess);
    EXPECT(ncclCommAbort(NULL), ncclSuccess);
    /* whatever it says of a communicator of no ranks, with a GPU or without */
    printf("%d %d\n", version, (int)ncclCommInitRank(&comm, 0, id, 0));
    return 0;
}
