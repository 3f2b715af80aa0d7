#include "tests/trainer/engine/ranks.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/common/fixture.h"
#include "tests/transport/local.h"

namespace tw
{

static const std::string &text_path()
{
    static const std::string path = [] {
        const char *folder = getenv("TEST_TMPDIR");
        std::string name = std::string(folder ? folder : "/tmp") + "/text.txt";
        FILE *file = fopen(name.c_str(), "w");
        unsigned state = 1;
        for (int i = 0; i < 4000; i++) {
            static const char *const words[] = {"the ",    "ark ",  "and ",  "of ",
                                                "waters ", "went ", "upon ", "earth.\n"};
            state = state * 1664525u + 1013904223u;
            fputs(words[state >> 29], file);
        }
        fclose(file);
        return name;
    }();
    return path;
}

std::vector<std::string> tiny_sets()
{
    return {"thinwire.data=" + text_path(),
            "model.n_layer=2",
            "model.n_head=2",
            "model.n_embd=32",
            "model.vocab_size=257",
            "thinwire.sequence_length=17",
            "thinwire.val_sequences=8",
            "thinwire.steps=5",
            "scheduler.params.warmup_num_steps=2",
            "optimizer.params.lr=3e-3"};
}

void run_ranks(const std::vector<int> &node_of, const std::function<void(int, tw_coll_t *)> &body)
{
    std::vector<tw_transport_t *> transports(node_of.size());
    ASSERT_EQ(tw_transport_local_create((int)node_of.size(), node_of.data(), transports.data()), TW_OK);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < node_of.size(); rank++) {
        threads.emplace_back([&, rank] {
            tw_coll_params_t params = {};
            params.transport = transports[rank];
            params.deterministic = 1;
            params.progress_thread = 1;
            tw_coll_t *coll = nullptr;
            ASSERT_EQ(tw_coll_create(&params, &coll), TW_OK);
            body((int)rank, coll);
            tw_coll_destroy(coll);
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (tw_transport_t *transport : transports) {
        tw_transport_destroy(transport);
    }
}

} // namespace tw
