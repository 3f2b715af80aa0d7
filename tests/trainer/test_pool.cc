/* Every item of a task is done once, by whichever thread, and tasks follow one another. */
#include <atomic>
#include <ctime>
#include <vector>

#include "tests/common/fixture.h"

#include "trainer/pool.h"

namespace
{

class Pool : public tw::Fixture, public ::testing::WithParamInterface<int>
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(TW_OK, tw_pool_create(GetParam(), &pool_));
    }
    void TearDown() override
    {
        tw_pool_destroy(pool_);
        tw::Fixture::TearDown();
    }
    tw_pool_t *pool_ = nullptr;
};

struct Items {
    std::vector<int> done;
    std::vector<std::atomic<int>> busy; /* by thread */
    std::atomic<int> wrong{0};

    Items(size_t n, int n_threads) : done(n), busy((size_t)n_threads)
    {
    }
};

void do_item(void *ctx, size_t item, int thread)
{
    auto *items = static_cast<Items *>(ctx);
    if (thread < 0 || (size_t)thread >= items->busy.size() || items->busy[(size_t)thread]++ != 0) {
        items->wrong++;
        return;
    }
    items->done[item]++;
    items->busy[(size_t)thread]--;
}

TEST_P(Pool, EveryItemIsDoneOnce)
{
    EXPECT_EQ(GetParam(), tw_pool_threads(pool_));
    for (size_t n : {0, 1, 2, 3, 7, 100}) {
        for (int again = 0; again < 50; again++) {
            Items items(n, GetParam());
            tw_pool_run(pool_, n, do_item, &items);
            EXPECT_EQ(std::vector<int>(n, 1), items.done);
            EXPECT_EQ(0, items.wrong);
        }
    }
}

struct Ranges {
    std::vector<int> done;
    size_t step, least;
    std::atomic<int> wrong{0};
};

void do_range(void *ctx, size_t first, size_t n, int)
{
    auto *ranges = static_cast<Ranges *>(ctx);
    bool is_last = first + n == ranges->done.size();
    if (first % ranges->step != 0 || (!is_last && n % ranges->step != 0) || (!is_last && n < ranges->least)) {
        ranges->wrong++;
    }
    for (size_t i = first; i < first + n; i++) {
        ranges->done[i]++;
    }
}

TEST_P(Pool, RangesCoverAllElements)
{
    for (size_t n : {0, 1, 15, 16, 17, 1000, 4096}) {
        for (size_t step : {1, 16}) {
            for (size_t least : {1, 50, 100000}) {
                Ranges ranges{std::vector<int>(n), step, least};
                tw_pool_ranges(pool_, n, step, least, do_range, &ranges);
                EXPECT_EQ(std::vector<int>(n, 1), ranges.done);
                EXPECT_EQ(0, ranges.wrong) << n << " " << step << " " << least;
            }
        }
    }
}

/* Waits, asleep, until all items have begun: so each has a thread of its own. */
struct Meeting {
    size_t n;
    std::atomic<size_t> here{0};
};

void meet(void *ctx, size_t, int)
{
    auto *meeting = static_cast<Meeting *>(ctx);
    meeting->here++;
    while (meeting->here < meeting->n) {
        timespec moment = {0, 100000};
        nanosleep(&moment, nullptr);
    }
}

TEST_P(Pool, ItemsAreDoneAtTheSameTime)
{
    for (int again = 0; again < 5; again++) {
        Meeting meeting{(size_t)GetParam()};
        tw_pool_run(pool_, meeting.n, meet, &meeting);
        EXPECT_EQ(meeting.n, meeting.here);
        timespec pause = {0, 2000000}; /* until they are asleep */
        nanosleep(&pause, nullptr);
    }
}

TEST_P(Pool, ItsProcessorTimeIsThatOfTheOtherThreads)
{
    double before = tw_pool_processor_sec(pool_);
    Meeting meeting{(size_t)GetParam()};
    tw_pool_run(pool_, meeting.n, meet, &meeting);
    EXPECT_EQ(GetParam() > 1, tw_pool_processor_sec(pool_) > before);
}

INSTANTIATE_TEST_SUITE_P(, Pool, ::testing::Values(1, 2, 3, 8));

class PoolAlone : public tw::Fixture
{
};

TEST_F(PoolAlone, NoPoolIsTheCallersThread)
{
    Items items(5, 1);
    tw_pool_run(nullptr, 5, do_item, &items);
    EXPECT_EQ(std::vector<int>(5, 1), items.done);
    EXPECT_EQ(1, tw_pool_threads(nullptr));
    EXPECT_EQ(0.0, tw_pool_processor_sec(nullptr));
    tw_pool_destroy(nullptr);
}

TEST_F(PoolAlone, NumbersOfThreadsThatAreNoneAreRefused)
{
    tw_pool_t *pool = nullptr;
    for (int n : {0, -1, TW_POOL_MOST_THREADS + 1}) {
        expect_log(std::to_string(n) + " threads to compute with: expected 1 to 1024");
        EXPECT_EQ(TW_ERR_INVALID, tw_pool_create(n, &pool));
    }
    EXPECT_EQ(nullptr, pool);
}

} // namespace
