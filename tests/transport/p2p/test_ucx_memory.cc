#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "transport/p2p/carrier.h"

namespace
{

std::string tls_with_cuda(const char *tls, bool has_gpu)
{
    char *all = tw_p2p_tls_with_cuda(tls, has_gpu);
    const std::string text = all ? all : "out of memory";
    free(all);
    return text;
}

/* Where UCX knows no GPU, and where the value is about CUDA already, nothing is added: UCX would warn, or do
 * otherwise. */
TEST(P2pMemory, CudaWhereItIsOfUse)
{
    for (const std::string plain :
         {"posix,sysv,cma", "rc", "ally", "al", "rc,ally", "cud", "rc,xcuda", "tcp^"}) {
        EXPECT_EQ(tls_with_cuda(plain.c_str(), true), plain + ",cuda");
        EXPECT_EQ(tls_with_cuda(plain.c_str(), false), plain);
    }
    for (const char *whole : {"all", "rc,all", "all,rc", "^rc", "tcp,cuda_copy", "cuda,rc", "cuda"}) {
        EXPECT_EQ(tls_with_cuda(whole, true), whole);
        EXPECT_EQ(tls_with_cuda(whole, false), whole);
    }
}

} // namespace
