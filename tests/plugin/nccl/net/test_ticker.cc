/* The thread that moves on what NCCL has stopped asking for. */
#include <unistd.h>

#include "plugin/nccl/net/state.h"
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/net/ticker_sleeps.h"

namespace
{

class Ticker : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        tw_p2p_params_t params = {};
        params.name = "ticker";
        params.net_tls = "tcp";
        params.net_devices = "lo";
        params.streams = 1;
        params.timeout_sec = 5;
        ASSERT_EQ(tw_p2p_create(&params, &domain.p2p), TW_OK);
        ASSERT_EQ(pthread_mutex_init(&domain.lock, nullptr), 0);
        ASSERT_EQ(tw_net_ticker_start(&domain), TW_OK);
    }
    void TearDown() override
    {
        tw_net_ticker_stop(&domain);
        tw_p2p_destroy(domain.p2p);
        pthread_mutex_destroy(&domain.lock);
        tw::Fixture::TearDown();
    }
    tw_net_domain_t domain = {};
};

/* Whoever wakes it has the lock, and may have it for a while yet, and nobody wakes it again before it has had
 * a look: it tries again soon, not when it would have got up anyway. */
TEST_F(Ticker, WhoeverWakesItMayKeepTheLock)
{
    pthread_mutex_lock(&domain.lock);
    tw_net_ticker_wake(&domain);
    usleep(50000);
    const long before = ticker_sleeps();
    usleep(400000);
    const long n = ticker_sleeps() - before;
    EXPECT_EQ(domain.is_idle, 0);
    pthread_mutex_unlock(&domain.lock);
    EXPECT_GT(n, 20) << "a look each 50 ms are 8";
}

} // namespace
