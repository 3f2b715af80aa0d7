#include "trainer/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/collectives/world.h"
#include "tests/common/fixture.h"
#include "tests/trainer/checkpoint/older.h"

/* Set: this process's file system knows no flags of renameat2, as NFS. */
static bool knows_no_flags;

/* Called in place of the C library's. */
extern "C" int renameat2(int old_fd, const char *old_path, int new_fd, const char *new_path,
                         unsigned int flags) noexcept
{
    if (knows_no_flags && flags != 0) {
        errno = EINVAL;
        return -1;
    }
    return static_cast<int>(syscall(SYS_renameat2, old_fd, old_path, new_fd, new_path, flags));
}

namespace
{

constexpr tw_model_config_t kConfig = {11, 5, 2, 2, 6, 1e-5, TW_MODEL_GPT2, {}, TW_TYPE_FP32, 0};

/* What element i of a tensor holds after a step: any two differ. */
float value_of(int kind, size_t tensor, size_t elem, uint64_t step)
{
    return static_cast<float>(step * 1000000 + static_cast<uint64_t>(kind) * 100000 + tensor * 1000 + elem);
}

/* All of a rank's pieces and their memory. Cut so that some ranks have nothing of a tensor. */
class Shard
{
  public:
    Shard(const tw_model_t *model, int rank, int world)
    {
        size_t n_tensors;
        const tw_model_tensor_t *tensors = tw_model_tensors(model, &n_tensors);
        for (size_t t = 0; t < n_tensors; t++) {
            tw_checkpoint_piece_t piece = {};
            piece.tensor = t;
            piece.first = tw_coll_shard_offset(tensors[t].n_elems, world, rank);
            piece.n_elems = tw_coll_shard_elems(tensors[t].n_elems, world, rank);
            pieces.push_back(piece);
            memory_.emplace_back(3 * piece.n_elems + 1, -1.0f);
        }
        for (size_t t = 0; t < n_tensors; t++) {
            for (size_t kind = 0; kind < 3; kind++) {
                pieces[t].values[kind] = memory_[t].data() + kind * pieces[t].n_elems;
            }
        }
    }
    void fill(uint64_t step)
    {
        each([&](float *value, float want) { *value = want; }, step);
    }
    size_t wrong(uint64_t step)
    {
        size_t n = 0;
        each([&](float *value, float want) { n += *value != want; }, step);
        return n;
    }

    std::vector<tw_checkpoint_piece_t> pieces;

  private:
    template <typename F>
    void each(F f, uint64_t step)
    {
        for (auto &piece : pieces) {
            for (int kind = 0; kind < 3; kind++) {
                for (size_t i = 0; i < piece.n_elems; i++) {
                    f(&piece.values[kind][i], value_of(kind, piece.tensor, piece.first + i, step));
                }
            }
        }
    }
    std::vector<std::vector<float>> memory_;
};

class Checkpoint : public tw::Fixture
{
  protected:
    void SetUp() override
    {
        tw::Fixture::SetUp();
        ASSERT_EQ(TW_OK, tw_model_create(&kConfig, &model_));
        folder_ = ::testing::TempDir() + "checkpoint." + std::to_string(getpid());
        remove_all();
    }
    void TearDown() override
    {
        tw_checkpoint_close(open_);
        tw_model_destroy(model_);
        remove_all();
        tw::Fixture::TearDown();
    }
    void remove_all()
    {
        ASSERT_EQ(0, system(("rm -rf " + folder_).c_str()));
    }
    tw_checkpoint_state_t save_of(const Shard &shard, uint64_t step, size_t keep)
    {
        tw_checkpoint_state_t save = {};
        save.folder = folder_.c_str();
        save.keep = keep;
        save.model = model_;
        save.run.step = step;
        save.run.seed = 7;
        save.run.batch = 8;
        save.run.seq_len = 5;
        save.pieces = shard.pieces.data();
        save.n_pieces = shard.pieces.size();
        return save;
    }
    void save(int world, uint64_t step, size_t keep = 2, tw_status_t want = TW_OK)
    {
        tw::World ranks(std::vector<int>(static_cast<size_t>(world), 0));
        ranks.run([&](int rank) {
            Shard shard(model_, rank, world);
            shard.fill(step);
            tw_checkpoint_state_t save = save_of(shard, step, keep);
            EXPECT_EQ(want, tw_checkpoint_save(ranks.coll(rank), &save)) << rank;
        });
    }
    tw_status_t open(const std::string &path = "")
    {
        tw_checkpoint_close(open_);
        open_ = nullptr;
        return tw_checkpoint_open(path.empty() ? folder_.c_str() : path.c_str(), model_, &open_);
    }
    /* Every rank of a world of this size gets what was saved. */
    void expect_loads(int world, uint64_t step)
    {
        for (int rank = 0; rank < world; rank++) {
            ASSERT_EQ(TW_OK, open());
            EXPECT_EQ(step, tw_checkpoint_run_get(open_)->step);
            Shard shard(model_, rank, world);
            ASSERT_EQ(TW_OK, tw_checkpoint_read(open_, shard.pieces.data(), shard.pieces.size()));
            EXPECT_EQ(0u, shard.wrong(step)) << rank << " of " << world;
        }
    }
    tw_status_t read_all()
    {
        Shard shard(model_, 0, 1);
        return tw_checkpoint_read(open_, shard.pieces.data(), shard.pieces.size());
    }
    std::set<std::string> names() const
    {
        std::set<std::string> found;
        DIR *folder = opendir(folder_.c_str());
        while (const dirent *entry = readdir(folder)) {
            found.insert(entry->d_name);
        }
        closedir(folder);
        found.erase(".");
        found.erase("..");
        return found;
    }
    std::string file(uint64_t step, const std::string &name) const
    {
        char step_name[32];
        snprintf(step_name, sizeof(step_name), "step-%08llu", static_cast<unsigned long long>(step));
        return folder_ + "/" + step_name + "/" + name;
    }

    tw_model_t *model_ = nullptr;
    tw_checkpoint_t *open_ = nullptr;
    std::string folder_;
};

void flip_byte(const std::string &path, std::streamoff at)
{
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
}

TEST_F(Checkpoint, LoadsOnOtherWorlds)
{
    for (int saved_by : {1, 2, 3, 5, 8}) {
        save(saved_by, 10);
        for (int loaded_by : {1, 2, 3, 7}) {
            expect_loads(loaded_by, 10);
        }
        EXPECT_EQ(saved_by, tw_checkpoint_run_get(open_)->world);
        EXPECT_EQ(7u, tw_checkpoint_run_get(open_)->seed);
        EXPECT_EQ(8u, tw_checkpoint_run_get(open_)->batch);
        EXPECT_EQ(5u, tw_checkpoint_run_get(open_)->seq_len);
    }
}

TEST_F(Checkpoint, TheLastOnesAreKept)
{
    for (uint64_t step : {1, 5, 20, 100, 1000}) {
        save(2, step, 3);
    }
    EXPECT_EQ((std::set<std::string>{"step-00000020", "step-00000100", "step-00001000"}), names());
    expect_loads(1, 1000);
    ASSERT_EQ(TW_OK, open(folder_ + "/step-00000020"));
    EXPECT_EQ(20u, tw_checkpoint_run_get(open_)->step);
    save(2, 50, 1); /* somebody went back: later ones are left alone */
    EXPECT_EQ((std::set<std::string>{"step-00000050", "step-00000100", "step-00001000"}), names());
}

TEST_F(Checkpoint, TheSameStepTwice)
{
    save(3, 10);
    save(2, 10);
    EXPECT_EQ((std::set<std::string>{"step-00000010"}), names());
    expect_loads(1, 10);
    EXPECT_EQ(2, tw_checkpoint_run_get(open_)->world);
}

TEST_F(Checkpoint, TheSameStepTwiceWhereNothingIsExchanged)
{
    knows_no_flags = true;
    save(3, 10);
    save(2, 10);
    knows_no_flags = false;
    EXPECT_EQ((std::set<std::string>{"step-00000010"}), names());
    expect_loads(1, 10);
    EXPECT_EQ(2, tw_checkpoint_run_get(open_)->world);
}

/* Whoever has written waits for those that have not, longer than any operation may take. */
TEST_F(Checkpoint, WritingMayTakeLonger)
{
    tw::World ranks(std::vector<int>{0, 0});
    expect_log("rank 1: allgather (");
    allow_log("rank 1: " + folder_); /* it may have waited for its own disk, too */
    ranks.run([&](int rank) {
        tw_coll_t *coll = ranks.coll(rank);
        double limit = tw_coll_timeout(coll);
        Shard shard(model_, rank, 2);
        shard.fill(3);
        tw_checkpoint_state_t save = save_of(shard, 3, 2);
        tw_checkpoint_saving_t *saving = nullptr;
        ASSERT_EQ(TW_OK, tw_checkpoint_save_begin(coll, &save, &saving));
        tw_coll_timeout_set(coll, rank == 1 ? 1e-3 : limit);
        usleep(rank == 0 ? 50000 : 0);
        EXPECT_EQ(TW_OK, tw_checkpoint_save_end(saving));
        EXPECT_NEAR(tw_coll_timeout(coll), rank == 1 ? 1e-3 : limit, 1e-6);
        tw_coll_timeout_set(coll, limit);
    });
    expect_loads(1, 3);
}

/* What one rank has no memory for no rank begins; the next one is as if nothing had been. */
TEST_F(Checkpoint, ARankOutOfMemoryIsEverybodys)
{
    tw::World ranks(std::vector<int>{0, 0, 0});
    expect_log("rank 1: out of memory for a checkpoint");
    ranks.run([&](int rank) {
        Shard shard(model_, rank, 3);
        shard.fill(3);
        tw_checkpoint_state_t save = save_of(shard, 3, 2), too_much = save;
        tw_checkpoint_saving_t *saving = nullptr;
        too_much.n_pieces = rank == 1 ? SIZE_MAX / 64 : save.n_pieces;
        EXPECT_EQ(TW_ERR_NO_MEMORY, tw_checkpoint_save_begin(ranks.coll(rank), &too_much, &saving)) << rank;
        EXPECT_EQ(nullptr, saving);
        EXPECT_EQ(TW_OK, tw_checkpoint_save(ranks.coll(rank), &save)) << rank;
    });
    expect_loads(1, 3);
}

TEST_F(Checkpoint, WhatACrashLeftIsPassedOverAndRemoved)
{
    save(2, 10);
    ASSERT_EQ(0, rename((folder_ + "/step-00000010").c_str(), (folder_ + "/step-00000020.tmp").c_str()));
    expect_log("no checkpoint there");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open());
    save(2, 5);
    EXPECT_EQ((std::set<std::string>{"step-00000005"}), names());
}

TEST_F(Checkpoint, ADamagedShardIsNamed)
{
    save(3, 10);
    std::string shard = file(10, "shard-00001.safetensors");
    std::ifstream(shard, std::ios::ate).tellg();
    std::streamoff bytes = std::ifstream(shard, std::ios::ate).tellg();
    flip_byte(shard, bytes - 3);
    ASSERT_EQ(TW_OK, open());
    expect_log("shard-00001.safetensors: this shard is damaged");
    EXPECT_EQ(TW_ERR_FORMAT, read_all());

    Shard first(model_, 0, 3); /* who needs nothing of it does not mind */
    ASSERT_EQ(TW_OK, open());
    EXPECT_EQ(TW_OK, tw_checkpoint_read(open_, first.pieces.data(), first.pieces.size()));

    ASSERT_EQ(0, truncate(shard.c_str(), bytes - 1));
    expect_log("shard-00001.safetensors: this shard has");
    EXPECT_EQ(TW_ERR_TRUNCATED, open());
    ASSERT_EQ(0, unlink(shard.c_str()));
    expect_log("shard-00001.safetensors: this shard is missing");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open());
}

TEST_F(Checkpoint, AnyDamagedByteOfTheManifestIsSeen)
{
    save(2, 10);
    std::string manifest = file(10, "manifest.json");
    std::ifstream in(manifest);
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    allow_log("manifest.json: ");
    for (size_t at = 0; at < text.size(); at += 7) {
        flip_byte(manifest, static_cast<std::streamoff>(at));
        tw_status_t status = open();
        if (status == TW_OK) { /* white space, or a digit's twin: it says the same */
            EXPECT_TRUE(isspace(text[at]) != 0) << at << " " << text.substr(at, 20);
        } else {
            EXPECT_EQ(TW_ERR_FORMAT, status) << at;
        }
        flip_byte(manifest, static_cast<std::streamoff>(at));
    }
    EXPECT_EQ(TW_OK, open());
}

TEST_F(Checkpoint, AnotherModelIsRefused)
{
    save(2, 10);
    tw_model_destroy(model_);
    tw_model_config_t other = kConfig;
    other.n_positions = 6;
    ASSERT_EQ(TW_OK, tw_model_create(&other, &model_));
    expect_log("of another model: model.n_positions was 5 when it was saved, and is 6 now");
    EXPECT_EQ(TW_ERR_MISMATCH, open());
}

/* As an older program has written it: without what it did not know of. */
TEST_F(Checkpoint, AnOlderManifestIsRead)
{
    save(2, 10);
    std::string path = folder_ + "/step-00000010/manifest.json";
    tw::make_manifest_older(path);
    ASSERT_EQ(TW_OK, open());
    EXPECT_EQ(0u, tw_checkpoint_run_get(open_)->id);
    EXPECT_EQ(nullptr, tw_checkpoint_run_get(open_)->facts);
    EXPECT_EQ(0, read_all());
    /* the sizes of its tensors are all that it says of the model */
    tw_model_destroy(model_);
    tw_model_config_t other = kConfig;
    other.n_positions = 6;
    ASSERT_EQ(TW_OK, tw_model_create(&other, &model_));
    expect_log("of another model: tensor 1 is 'transformer.wpe.weight' of 30 elements");
    EXPECT_EQ(TW_ERR_MISMATCH, open());
}

TEST_F(Checkpoint, ARunIsKnownByItsId)
{
    tw::World world({0});
    Shard shard(model_, 0, 1);
    shard.fill(10);
    tw_checkpoint_state_t save = save_of(shard, 10, 1);
    save.run.id = 0xabcdef;
    save.run.recent_loss = 1.0 / 3;
    save.run.facts = "thinwire.val_share=0.05\na=b=c\n";
    ASSERT_EQ(TW_OK, tw_checkpoint_save(world.coll(0), &save));
    ASSERT_EQ(TW_OK, open());
    const tw_checkpoint_run_t *run = tw_checkpoint_run_get(open_);
    EXPECT_EQ(0xabcdefu, run->id);
    EXPECT_EQ(1.0 / 3, run->recent_loss);
    EXPECT_STREQ("thinwire.val_share=0.05\na=b=c\n", run->facts);
    EXPECT_NE(0u, run->checksum);
    EXPECT_TRUE(tw_checkpoint_has_later(folder_.c_str(), 0xabcdef, 9));
    EXPECT_FALSE(tw_checkpoint_has_later(folder_.c_str(), 0xabcdef, 10));
    EXPECT_FALSE(tw_checkpoint_has_later(folder_.c_str(), 0xabcde0, 9));
}

/* What a run keeps of its steps is not counted by another's, nor removed by it. */
TEST_F(Checkpoint, AnotherRunsStepsStay)
{
    tw::World world({0});
    auto save_as = [&](uint64_t id, uint64_t step) {
        Shard shard(model_, 0, 1);
        shard.fill(step);
        tw_checkpoint_state_t save = save_of(shard, step, 1);
        save.run.id = id;
        EXPECT_EQ(TW_OK, tw_checkpoint_save(world.coll(0), &save));
    };
    save_as(7, 5);
    save_as(7, 90);
    save_as(8, 10);
    save_as(8, 20);
    EXPECT_EQ((std::set<std::string>{"step-00000020", "step-00000090"}), names());
    tw_checkpoint_others_t others;
    ASSERT_EQ(TW_OK, tw_checkpoint_claim(folder_.c_str(), 8, &others));
    EXPECT_EQ(1u, others.n_steps);
    ASSERT_EQ(TW_OK, open());
    EXPECT_EQ(20u, tw_checkpoint_run_get(open_)->step); /* not 90 */
}

TEST_F(Checkpoint, ElementsThatNobodySavedAreNamed)
{
    tw::World world({0});
    Shard shard(model_, 0, 1);
    shard.pieces.erase(shard.pieces.begin() + 1);
    tw_checkpoint_state_t save = save_of(shard, 3, 1);
    ASSERT_EQ(TW_OK, tw_checkpoint_save(world.coll(0), &save));
    ASSERT_EQ(TW_OK, open());
    expect_log("element 0 of tensor 'transformer.wpe.weight' is in no shard");
    EXPECT_EQ(TW_ERR_NOT_FOUND, read_all());
}

TEST_F(Checkpoint, NothingThere)
{
    expect_log("no checkpoint there");
    EXPECT_EQ(TW_ERR_NOT_FOUND, open());
    std::ofstream(folder_) << "not a folder";
    expect_log("cannot open it: Not a directory");
    EXPECT_NE(TW_OK, open());
    unlink(folder_.c_str());
}

/* One rank cannot write: all of them hear of it, and the old checkpoint stays. */
TEST_F(Checkpoint, OneRanksFailureIsEverybodys)
{
    save(2, 10);
    tw::World ranks({0, 0, 0});
    expect_log("are not the model's");
    ranks.run([&](int rank) {
        Shard shard(model_, rank, 3);
        shard.pieces[0].first += rank == 1 ? 1000 : 0;
        tw_checkpoint_state_t save = save_of(shard, 20, 1);
        EXPECT_EQ(TW_ERR_INVALID, tw_checkpoint_save(ranks.coll(rank), &save));
    });
    expect_loads(1, 10);
    EXPECT_EQ(0, system(("! ls " + folder_ + " | grep tmp").c_str())) << "what is half written takes up room";
    std::ofstream(folder_ + ".file") << "";
    folder_ += ".file/below";
    expect_log("cannot make this folder");
    save(2, 10, 2, TW_ERR_IO);
    folder_.resize(folder_.size() - 6);
}

/* Killed at any moment, a run leaves a checkpoint that loads: the last one that was finished, or the one
 * after it. */
TEST_F(Checkpoint, SurvivesKills)
{
    save(1, 1);
    for (useconds_t delay = 0; delay < 24; delay++) {
        int said[2];
        ASSERT_EQ(0, pipe(said));
        pid_t child = fork();
        if (child == 0) {
            tw::World world({0});
            for (uint64_t step = 2;; step++) {
                Shard shard(model_, 0, 1);
                shard.fill(step);
                tw_checkpoint_state_t save = save_of(shard, step, 1);
                if (tw_checkpoint_save(world.coll(0), &save) != TW_OK ||
                    write(said[1], &step, sizeof(step)) != sizeof(step)) {
                    _exit(1);
                }
            }
        }
        close(said[1]);
        uint64_t last = 1;
        ASSERT_EQ(static_cast<ssize_t>(sizeof(last)), read(said[0], &last, sizeof(last)));
        usleep(delay * 397);
        kill(child, SIGKILL);
        int code;
        waitpid(child, &code, 0);
        EXPECT_TRUE(WIFSIGNALED(code)) << code;
        while (read(said[0], &last, sizeof(last)) == sizeof(last)) {
        }
        close(said[0]);
        ASSERT_EQ(TW_OK, open());
        uint64_t step = tw_checkpoint_run_get(open_)->step;
        EXPECT_TRUE(step == last || step == last + 1) << step << " after " << last;
        expect_loads(1, step);
        remove_all();
        save(1, 1);
    }
}

} // namespace
