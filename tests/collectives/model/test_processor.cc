/* Measuring the processor. */
#include <thread>
#include <vector>

#include "collectives/model/measuring.h"
#include "tests/common/fixture.h"

namespace
{

using Processor = tw::Fixture;

/* Between a petabyte and a megabyte per second: seconds per byte, neither per element nor for the whole
 * buffer. */
TEST_F(Processor, EveryValueIsSecondsPerByte)
{
    tw_cpu_sample_t sample;
    ASSERT_EQ(tw_measure_processor(&sample), TW_OK);
    std::vector<double> values = {sample.copy_sec, sample.reduce_sec, sample.encode_short_sec,
                                  sample.decode_short_sec};
    for (int kind = 0; kind < TW_QUANT_KINDS; kind++) {
        const tw_quant_row_t *row = tw_quant_row_get(tw_quant_kind_t(kind));
        if (row->form == TW_QUANT_BLOCKS || row->form == TW_QUANT_MESSAGE) {
            values.insert(values.end(), {sample.encode_sec[4 * kind], sample.decode_sec[4 * kind]});
        }
        if (row->has & TW_QUANT_HAS_STOCHASTIC) {
            values.push_back(sample.encode_sec[4 * kind + 2]);
        }
        if (row->has & TW_QUANT_HAS_HADAMARD) {
            values.insert(values.end(), {sample.encode_sec[4 * kind + 1], sample.decode_sec[4 * kind + 1]});
        }
    }
    for (double sec : values) {
        EXPECT_GT(sec, 1e-15);
        EXPECT_LT(sec, 1e-6);
    }
}

TEST_F(Processor, HostIsTheSameForAllThreads)
{
    tw_measure_host_t here = {}, there = {};
    tw_measure_host_init(&here);
    std::thread([&] { tw_measure_host_init(&there); }).join();
    EXPECT_EQ(here.boot, there.boot);
    EXPECT_GE(here.cores, 1);
}

TEST_F(Processor, SleepingIsNotProcessorTime)
{
    double before = tw_thread_sec();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_LT(tw_thread_sec() - before, 0.1);
    volatile double x = 1;
    double start = tw_thread_sec();
    for (int i = 0; i < 1000000; i++) {
        x = x * 1.0000001;
    }
    EXPECT_GT(tw_thread_sec(), start);
}

} // namespace
