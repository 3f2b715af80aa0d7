/* Operations of a collnet through every version's table, between processes. A warning in any of them is a
 * failure. */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "quant/quant.h"
#include "tests/common/fixture.h"
#include "tests/plugin/nccl/collnet/group.h"

namespace
{

using namespace group;
using Bytes = std::vector<uint8_t>;

struct Type {
    int nccl;
    tw_type_t type;
};
constexpr Type types[] = {
    {TW_NCCL_FLOAT32, TW_TYPE_FP32}, {TW_NCCL_BFLOAT16, TW_TYPE_BF16}, {TW_NCCL_FLOAT16, TW_TYPE_FP16}};

/* Slots of NCCL's: eight steps, each with a place to send from and one to receive into. */
constexpr int n_steps = 8;
constexpr size_t slot_bytes = (size_t)1 << 20;

class Slots
{
  public:
    Slots(CollNet &net, void *comm) : net_(net), comm_(comm), memory_(2 * n_steps * slot_bytes)
    {
        expect(net_.register_memory(comm_, memory_.data(), memory_.size(), &mhandle_) == TW_NCCL_SUCCESS,
               "regMr");
    }
    ~Slots()
    {
        (void)net_.deregister_memory(comm_, mhandle_);
    }
    uint8_t *send(size_t step)
    {
        return memory_.data() + step % n_steps * slot_bytes;
    }
    uint8_t *receive(size_t step)
    {
        return memory_.data() + (n_steps + step % n_steps) * slot_bytes;
    }

  private:
    CollNet &net_;
    void *comm_, *mhandle_ = nullptr;
    Bytes memory_;
};

/* What rank `rank` puts into operation `number`: values of which sums are exact in every type, or any. */
std::vector<float> values(size_t n, int rank, size_t number, bool whole)
{
    std::mt19937 random((unsigned)(rank * 1000 + (int)number));
    std::vector<float> out(n);
    for (float &value : out) {
        value =
            whole ? (float)((int)(random() % 33) - 16) : std::ldexp((float)(int)(random() % 2001) - 1000, -9);
    }
    return out;
}

Bytes encoded(const std::vector<float> &from, tw_type_t type)
{
    Bytes out(from.size() * tw_type_bytes(type));
    tw_convert_from_fp32(type, from.data(), 1, out.data(), from.size());
    return out;
}

std::vector<float> decoded(const void *from, tw_type_t type, size_t n)
{
    std::vector<float> out(n);
    tw_convert_to_fp32(type, from, out.data(), n);
    return out;
}

std::vector<float> sums(size_t n, int world, size_t number, bool whole)
{
    std::vector<float> out(n, 0);
    for (int r = 0; r < world; r++) {
        const std::vector<float> one = values(n, r, number, whole);
        for (size_t i = 0; i < n; i++) {
            out[i] += one[i];
        }
    }
    return out;
}

uint64_t fingerprint(const Bytes &bytes)
{
    uint64_t hash = 1469598103934665603u;
    for (uint8_t byte : bytes) {
        hash = (hash ^ byte) * 1099511628211u;
    }
    return hash;
}

/* Wherever this is called, all ranks have the same. */
void agree(const Place &place, const Bytes &bytes)
{
    const uint64_t own = fingerprint(bytes);
    for (const auto &word : place.swap(&own, sizeof(own))) {
        expect(memcmp(word.data(), &own, sizeof(own)) == 0, "ranks have got different bits");
    }
}

std::string run_with(int version_number, int n,
                     const std::function<void(CollNet &, void *, const Place &)> &body,
                     const std::map<std::string, std::string> &env = {})
{
    return run(
        n,
        [&](const Place &place) {
            auto net = version(version_number);
            expect(net->init() == TW_NCCL_SUCCESS, "init");
            void *comm = join(*net, place);
            body(*net, comm, place);
            expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
            expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
        },
        env);
}

class Versions : public testing::TestWithParam<int>
{
};

/* ---- all-reduce ---------------------------------------------------------------------------------------- */

TEST_P(Versions, AllReducesAreExact)
{
    for (int n : {1, 2, 3}) {
        EXPECT_EQ(
            run_with(
                GetParam(), n,
                [](CollNet &net, void *comm, const Place &place) {
                    Slots slots(net, comm);
                    size_t number = 0;
                    for (const Type &type : types) {
                        for (size_t count : {0, 1, 127, 128, 129, 16384, 200001}) {
                            const Bytes in = encoded(values(count, place.rank(), number, true), type.type);
                            const Bytes right = encoded(sums(count, place.n(), number, true), type.type);
                            uint8_t *send = slots.send(number), *receive = slots.receive(number);
                            std::copy(in.begin(), in.end(), send);
                            void *request = taken([&](void **out) {
                                return net.allreduce(comm, send, receive, count, type.nccl, TW_NCCL_SUM, out);
                            });
                            finish(net, request, right.size());
                            expect(std::equal(right.begin(), right.end(), receive),
                                   "wrong sums of " + std::to_string(count));
                            void *flush = &request;
                            expect(net.flush(comm, receive, (int)right.size(), &flush) == TW_NCCL_SUCCESS &&
                                       flush == nullptr,
                                   "flush");
                            number++;
                        }
                    }
                }),
            "")
            << n << " ranks";
    }
}

/* As NCCL drives them: eight steps under way, each done before its slot is used again. */
void pipeline(CollNet &net, size_t n_operations, unsigned seed, const std::function<void *(size_t)> &post,
              const std::function<size_t(size_t)> &bytes, const std::function<void(size_t)> &check)
{
    std::mt19937 random(seed);
    std::vector<std::pair<size_t, void *>> under_way;
    std::vector<bool> is_ended(n_operations, false);
    size_t next = 0;
    while (next < n_operations || !under_way.empty()) {
        if (next < n_operations && (next < n_steps || is_ended[next - n_steps])) {
            under_way.emplace_back(next, post(next));
            next++;
        }
        const size_t i = random() % under_way.size();
        const size_t number = under_way[i].first;
        if (is_done(net, under_way[i].second, bytes(number))) {
            check(number);
            is_ended[number] = true;
            under_way.erase(under_way.begin() + (long)i);
        }
    }
}

TEST_P(Versions, EightStepsUnderWay)
{
    EXPECT_EQ(
        run_with(GetParam(), 3,
                 [](CollNet &net, void *comm, const Place &place) {
                     Slots slots(net, comm);
                     auto count = [](size_t number) { return 8192 * (1 + number % 7); };
                     pipeline(
                         net, 60, (unsigned)place.rank(),
                         [&](size_t k) {
                             const Bytes in = encoded(values(count(k), place.rank(), k, true), TW_TYPE_BF16);
                             std::copy(in.begin(), in.end(), slots.send(k));
                             return taken([&](void **out) {
                                 return net.allreduce(comm, slots.send(k), slots.receive(k), count(k),
                                                      TW_NCCL_BFLOAT16, TW_NCCL_SUM, out);
                             });
                         },
                         [&](size_t k) { return 2 * count(k); },
                         [&](size_t k) {
                             const Bytes right = encoded(sums(count(k), place.n(), k, true), TW_TYPE_BF16);
                             expect(std::equal(right.begin(), right.end(), slots.receive(k)), "wrong sums");
                         });
                 }),
        "");
}

/* ---- windows ------------------------------------------------------------------------------------------- */

/* NCCL goes through the whole in windows of a few chunks, whose bounds are not those of ranks. */
struct Sweep {
    size_t bytes_per_rank, window;
    size_t n(int world) const
    {
        return (bytes_per_rank * (size_t)world + window - 1) / window;
    }
    CollNet::Window at(size_t k, int world) const
    {
        const size_t all = bytes_per_rank * (size_t)world, from = k * window;
        return {bytes_per_rank, from, std::min(window, all - from)};
    }
    /* The part of a window that is a rank's own: where it begins in the window, and its bytes. */
    static std::pair<size_t, size_t> own(const CollNet::Window &window, int rank)
    {
        const size_t first = window.bytes_per_rank * (size_t)rank, last = first + window.bytes_per_rank;
        const size_t from = std::max(first, window.offset), to = std::min(last, window.offset + window.bytes);
        return from < to ? std::make_pair(from - window.offset, to - from)
                         : std::make_pair((size_t)0, (size_t)0);
    }
};
constexpr Sweep sweeps[] = {{1000, 300}, {4096, 4096}, {100, 1000}, {262144, 200000}, {4, 4}};

TEST_P(Versions, GathersInWindows)
{
    EXPECT_EQ(
        run_with(GetParam(), 3,
                 [](CollNet &net, void *comm, const Place &place) {
                     Slots slots(net, comm);
                     for (const Sweep &sweep : sweeps) {
                         const Bytes whole = proxy::pattern(sweep.bytes_per_rank * (size_t)place.n(), 5);
                         pipeline(
                             net, sweep.n(place.n()), (unsigned)place.rank(),
                             [&](size_t k) {
                                 const auto window = sweep.at(k, place.n());
                                 const auto [from, bytes] = Sweep::own(window, place.rank());
                                 memcpy(slots.send(k), whole.data() + window.offset + from, bytes);
                                 memset(slots.receive(k), 0xa5, window.bytes + 16);
                                 return taken([&](void **out) {
                                     return net.allgather(comm, slots.send(k), slots.receive(k), window, out);
                                 });
                             },
                             [&](size_t k) { return sweep.at(k, place.n()).bytes; },
                             [&](size_t k) {
                                 const auto window = sweep.at(k, place.n());
                                 expect(memcmp(slots.receive(k), whole.data() + window.offset,
                                               window.bytes) == 0,
                                        "wrong bytes");
                                 expect(slots.receive(k)[window.bytes] == 0xa5, "bytes beyond the window");
                             });
                     }
                 }),
        "");
}

TEST_P(Versions, ScattersInWindows)
{
    EXPECT_EQ(run_with(GetParam(), 3,
                       [](CollNet &net, void *comm, const Place &place) {
                           Slots slots(net, comm);
                           for (const Sweep &sweep : sweeps) {
                               const size_t n = sweep.bytes_per_rank * (size_t)place.n() / 4;
                               const Bytes in = encoded(values(n, place.rank(), 3, true), TW_TYPE_FP32);
                               const Bytes right = encoded(sums(n, place.n(), 3, true), TW_TYPE_FP32);
                               pipeline(
                                   net, sweep.n(place.n()), (unsigned)place.rank(),
                                   [&](size_t k) {
                                       const auto window = sweep.at(k, place.n());
                                       memcpy(slots.send(k), in.data() + window.offset, window.bytes);
                                       memset(slots.receive(k), 0xa5, window.bytes + 16);
                                       return taken([&](void **out) {
                                           return net.reducescatter(comm, slots.send(k), slots.receive(k),
                                                                    window, TW_NCCL_FLOAT32, TW_NCCL_SUM,
                                                                    out);
                                       });
                                   },
                                   [&](size_t k) { return sweep.at(k, place.n()).bytes; },
                                   [&](size_t k) {
                                       const auto window = sweep.at(k, place.n());
                                       const auto [from, bytes] = Sweep::own(window, place.rank());
                                       expect(memcmp(slots.receive(k), right.data() + window.offset + from,
                                                     bytes) == 0,
                                              "wrong sums");
                                       expect(slots.receive(k)[bytes] == 0xa5, "bytes beyond the own part");
                                   });
                           }
                       }),
              "");
}

INSTANTIATE_TEST_SUITE_P(All, Versions, testing::Range(first_version, last_version + 1));

/* ---- codecs -------------------------------------------------------------------------------------------- */

class Codecs : public testing::TestWithParam<const char *>
{
};

/* Each element is off by what the codec may do to each rank's value and to the sum; all ranks have the same
 * bits; slots are empty. */
TEST_P(Codecs, AllReduces)
{
    for (int n : {2, 3}) {
        EXPECT_EQ(
            run_with(12, n,
                     [](CollNet &net, void *comm, const Place &place) {
                         tw_quant_codec_t codec;
                         expect(tw_quant_codec_parse(GetParam(), &codec) == TW_OK, "codec");
                         Slots slots(net, comm);
                         bool is_lossy = false;
                         size_t number = 0;
                         for (const Type &type : types) {
                             for (size_t count : {1, 129, 16384, 200001}) {
                                 const std::vector<float> own = values(count, place.rank(), number, false);
                                 const Bytes in = encoded(own, type.type);
                                 uint8_t *send = slots.send(number), *receive = slots.receive(number);
                                 std::copy(in.begin(), in.end(), send);
                                 finish(net, taken([&](void **out) {
                                            return net.allreduce(comm, send, receive, count, type.nccl,
                                                                 TW_NCCL_SUM, out);
                                        }),
                                        in.size());
                                 agree(place, Bytes(receive, receive + in.size()));
                                 expect(Bytes(send, send + in.size()) == Bytes(in.size(), 0), "a stale slot");
                                 const std::vector<float> right = sums(count, place.n(), number, false);
                                 const std::vector<float> got = decoded(receive, type.type, count);
                                 const double each = tw_quant_error_bound(&codec, 2),
                                              of_sum = tw_quant_error_bound(&codec, 2.1 * place.n());
                                 const double type_error = 2.1 * place.n() * std::ldexp(1, -8) * 2;
                                 for (size_t i = 0; i < count; i++) {
                                     expect(std::fabs(got[i] - right[i]) <=
                                                2 * (place.n() * each + of_sum) + type_error,
                                            "too far off");
                                     is_lossy = is_lossy || (type.type == TW_TYPE_FP32 && got[i] != right[i]);
                                 }
                                 number++;
                             }
                         }
                         expect(is_lossy, "nothing was quantized");
                     },
                     {{"TW_ALLREDUCE_CODEC", GetParam()}}),
            "")
            << n << " ranks";
    }
}

INSTANTIATE_TEST_SUITE_P(Some, Codecs,
                         testing::Values("int8", "int4", "int8:block=128,scale=fp32", "int4:stochastic"));

/* ---- lossless ------------------------------------------------------------------------------------------ */

/* What gradients never are, but may be: everything that a type has. */
Bytes any_bits(tw_type_t type, size_t count, int rank, size_t number)
{
    std::mt19937 random((unsigned)(rank * 1000 + (int)number));
    std::vector<float> out = values(count, rank, number, false);
    const float odd[] = {0, -0.0f, INFINITY, -INFINITY, std::nanf(""), 1e-41f, 6e-8f, 3e38f, 65504, 1};
    for (size_t i = 0; i < count; i += 1 + random() % 61) {
        out[i] = odd[random() % std::size(odd)];
    }
    return encoded(out, type);
}

/* A communicator each, made by what the variable said then; both in turn on the same slots, as a job would
 * have them. */
TEST(Lossless, HasTheBitsOfExact)
{
    for (int n : {1, 2, 3}) {
        EXPECT_EQ(run(n,
                      [](const Place &place) {
                          auto net = version(12);
                          expect(net->init() == TW_NCCL_SUCCESS, "init");
                          void *comms[2];
                          for (int k = 0; k < 2; k++) {
                              setenv("TW_ALLREDUCE_CODEC", k == 0 ? "plain" : "lossless", 1);
                              comms[k] = join(*net, place);
                          }
                          size_t number = 0;
                          for (const Type &type : types) {
                              for (size_t count : {1, 129, 16384, 200001}) {
                                  const Bytes in = any_bits(type.type, count, place.rank(), number++);
                                  Bytes results[2];
                                  for (int k = 0; k < 2; k++) {
                                      Bytes send = in;
                                      results[k].resize(in.size());
                                      finish(*net, taken([&](void **out) {
                                          return net->allreduce(comms[k], send.data(), results[k].data(),
                                                                count, type.nccl, TW_NCCL_SUM, out);
                                      }),
                                             in.size());
                                  }
                                  expect(results[0] == results[1], "other bits of " + std::to_string(count));
                                  agree(place, results[1]);
                              }
                          }
                          for (void *comm : comms) {
                              expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
                          }
                          expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                      }),
                  "")
            << n << " ranks";
    }
}

/* What rank 0 sends in all-reduces of fp32, as it says at the end. */
double sent_bytes(const std::string &codec, size_t count, size_t n_operations)
{
    const std::string text = run_with(
        12, 2,
        [=](CollNet &net, void *comm, const Place &place) {
            std::vector<float> send(count), receive(count);
            for (size_t k = 0; k < n_operations; k++) {
                send = values(count, place.rank(), k, true);
                finish(net, taken([&](void **out) {
                           return net.allreduce(comm, send.data(), receive.data(), count, TW_NCCL_FLOAT32,
                                                TW_NCCL_SUM, out);
                       }),
                       4 * count);
            }
        },
        /* on a fast link lossless operations go plain */
        {{"TW_ALLREDUCE_CODEC", codec}, {"TW_LOG_LEVEL", "info"}, {"TW_COLL_MODEL", "inter:beta=100mbit"}});
    const std::string before = "collnet: rank 0 of 2: " + std::to_string(n_operations) + " operations, ";
    const size_t at = text.find(before);
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find("ended with 1:"), std::string::npos) << text;
    return at != std::string::npos ? atof(text.c_str() + at + before.size()) : 0;
}

/* Two ranks: each sends as many bytes as the tensor has, plain, or as its blocks take; a little more to meet
 * and to compare arguments. */
TEST(Codec, SendsWhatItsBlocksTake)
{
    const size_t count = 300000, n = 10;
    for (const char *text : {"int8", "int4:block=128"}) {
        tw_quant_codec_t codec;
        ASSERT_EQ(tw_quant_codec_parse(text, &codec), TW_OK);
        const double blocks = 2.0 * (double)tw_quant_encoded_bytes(&codec, count / 2) * n;
        const double sent = sent_bytes(text, count, n);
        EXPECT_GE(sent, blocks) << text;
        EXPECT_LE(sent, 1.02 * blocks) << text;
    }
    const double plain = sent_bytes("plain", count, n);
    EXPECT_GE(plain, 4.0 * count * n);
    EXPECT_LE(plain, 1.02 * 4.0 * count * n);
    EXPECT_LE(sent_bytes("lossless", count, n), 0.85 * plain);
}

/* An operation of four bytes comes as a whole chunk, behind which lies what the one before has left. With
 * that in its blocks a codec would make nothing of the four bytes, or NaN. */
TEST(Stale, TailsDoNotCount)
{
    EXPECT_EQ(run_with(12, 2,
                       [](CollNet &net, void *comm, const Place &) {
                           constexpr size_t chunk = 8192;
                           Slots slots(net, comm);
                           std::vector<float> huge(chunk, 1e30f);
                           auto reduce = [&] {
                               finish(net, taken([&](void **out) {
                                          return net.allreduce(comm, slots.send(0), slots.receive(0), chunk,
                                                               TW_NCCL_FLOAT32, TW_NCCL_SUM, out);
                                      }),
                                      4 * chunk);
                           };
                           for (float tail : {1e30f, std::nanf("")}) {
                               std::fill(huge.begin(), huge.end(), tail);
                               memcpy(slots.send(0), huge.data(), 4 * chunk);
                               reduce();
                               const float own = 3;
                               memcpy(slots.send(0), &own, 4);
                               reduce();
                               float sum = 0;
                               memcpy(&sum, slots.receive(0), 4);
                               expect(std::fabs(sum - 6) < 0.2f, "the sum is " + std::to_string(sum));
                           }
                           /* What a gather has sent from a slot is stale, too. */
                           memcpy(slots.send(0), huge.data(), 4 * chunk);
                           finish(net, taken([&](void **out) {
                                      return net.allgather(comm, slots.send(0), slots.receive(0),
                                                           {2 * chunk, 0, 4 * chunk}, out);
                                  }),
                                  4 * chunk);
                           expect(slots.send(0)[0] == 0 && slots.send(0)[2 * chunk - 1] == 0, "a stale slot");
                       },
                       {{"TW_ALLREDUCE_CODEC", "int8"}}),
              "");
}

/* Whatever is asked for, gathers and scatters are plain. */
TEST(Exactness, CodecsAreForAllReduces)
{
    EXPECT_EQ(
        run_with(12, 2,
                 [](CollNet &net, void *comm, const Place &place) {
                     Slots slots(net, comm);
                     const size_t n = 5000;
                     const Bytes in = encoded(values(n, place.rank(), 1, true), TW_TYPE_FP32);
                     const Bytes right = encoded(sums(n, 2, 1, true), TW_TYPE_FP32);
                     std::copy(in.begin(), in.end(), slots.send(0));
                     finish(net, taken([&](void **out) {
                                return net.reducescatter(comm, slots.send(0), slots.receive(0),
                                                         {2 * n, 0, 4 * n}, TW_NCCL_FLOAT32, TW_NCCL_SUM,
                                                         out);
                            }),
                            4 * n);
                     expect(memcmp(slots.receive(0), right.data() + (size_t)place.rank() * 2 * n, 2 * n) == 0,
                            "wrong sums");
                 },
                 {{"TW_ALLREDUCE_CODEC", "int4"}}),
        "");
}

/* Several communicators of the same ranks at a time. */
TEST(Communicators, Several)
{
    EXPECT_EQ(run(2,
                  [](const Place &place) {
                      auto net = version(11);
                      expect(net->init() == TW_NCCL_SUCCESS, "init");
                      void *comms[2] = {join(*net, place), join(*net, place)};
                      std::vector<void *> requests;
                      std::vector<std::vector<float>> in, out;
                      for (size_t k = 0; k < 8; k++) {
                          in.push_back(values(10000, place.rank(), k, true));
                          out.emplace_back(10000);
                      }
                      for (size_t k = 0; k < 8; k++) { /* each in an order of its own */
                          const size_t i = place.rank() ? (k + 4) % 8 : k;
                          requests.push_back(taken([&](void **request) {
                              return net->allreduce(comms[i / 4], in[i].data(), out[i].data(), 10000,
                                                    TW_NCCL_FLOAT32, TW_NCCL_SUM, request);
                          }));
                      }
                      for (void *request : requests) {
                          finish(*net, request, 40000);
                      }
                      for (size_t k = 0; k < 8; k++) {
                          expect(out[k] == sums(10000, 2, k, true), "wrong sums");
                      }
                      expect(process::slurp("/proc/self/maps").find("libuc") == std::string::npos,
                             "UCX is of no use here");
                      for (void *comm : comms) {
                          expect(net->close(comm) == TW_NCCL_SUCCESS, "close");
                      }
                      expect(net->finalize() == TW_NCCL_SUCCESS, "finalize");
                  }),
              "");
}

} // namespace
