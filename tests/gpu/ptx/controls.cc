/* Branches, calls, barriers and what does nothing here. */
#include "tests/gpu/ptx/makers.h"
#include "tests/gpu/ptx/warp.h"

namespace tw::ptx
{

namespace
{

void make_bra(Statement &s)
{
    s.insn.flow = Flow::branch;
    s.label = {s.operands.at(0)};
}

void make_brx(Statement &s)
{
    s.insn.flow = Flow::table;
    s.insn.a = s.operand(0, Type::U32);
    s.label = {s.operands.at(1)};
}

void make_ret(Statement &s)
{
    s.insn.flow = s.translator->current()->entry || s.word == "exit" ? Flow::exit : Flow::ret;
}

void run_trap(Warp &w, const Insn &, u32 lanes)
{
    w.report_here("TRAP", (u32)__builtin_ctz(lanes), "");
}

void make_trap(Statement &s)
{
    s.insn.run = run_trap;
}

/* (result), name, (arguments); what is not there, an assertion that has failed, is a trap. */
void make_call(Statement &s)
{
    const Translator &translator = *s.translator;
    const bool with_result = s.operands.at(0)[0] == '(';
    const std::string &name = s.operands.at(with_result);
    const Translator::Frame *frame = s.translator->call(name, &s.insn.target);
    if (!frame) {
        make_trap(s);
        return;
    }
    s.insn.flow = Flow::call;
    s.insn.call = std::make_shared<Call>();
    const std::vector<std::string> results =
        with_result ? list_in(s.operands[0]) : std::vector<std::string>();
    const size_t next = with_result ? 2 : 1;
    const std::vector<std::string> arguments = next < s.operands.size() && s.operands[next][0] == '('
                                                   ? list_in(s.operands[next])
                                                   : std::vector<std::string>();
    for (size_t i = 0; i < arguments.size(); i++) {
        const Slot to = frame->parameters.at(i);
        s.insn.call->arguments.push_back({translator.argument(arguments[i]), to.offset, to.bytes});
    }
    for (size_t i = 0; i < results.size(); i++) {
        const Slot from = frame->results.at(i);
        s.insn.call->results.push_back({from.offset, translator.argument(results[i]), from.bytes});
    }
}

void run_warp_barrier(Warp &w, const Insn &, u32)
{
    w.epoch++;
}

/* bar.red: mode 1 popc, 2 and, 3 or */
void make_bar(Statement &s)
{
    Insn &in = s.insn;
    if (s.has("warp")) {
        in.run = run_warp_barrier;
        in.flow = Flow::meet;
        in.mask = s.operand(0, Type::b32);
        return;
    }
    in.flow = Flow::barrier;
    if (s.has("red")) {
        in.mode = (u8)(1 + s.which({"popc", "and", "or"}));
        in.d = s.operand(0, in.mode == 1 ? Type::b32 : Type::pred);
        in.b = s.operand(s.operands.size() - 1, Type::pred);
    } else if (!s.has("sync") || s.operands.size() > 1) {
        s.unknown();
    }
}

void make_nothing(Statement &)
{
}

} // namespace

extern const MakerTable control_makers;
const MakerTable control_makers = {
    {"bra", make_bra},           {"brx", make_brx},          {"ret", make_ret},
    {"exit", make_ret},          {"trap", make_trap},        {"call", make_call},
    {"bar", make_bar},           {"barrier", make_bar},      {"membar", make_nothing},
    {"fence", make_nothing},     {"prefetch", make_nothing}, {"prefetchu", make_nothing},
    {"nanosleep", make_nothing}, {"discard", make_nothing},  {"applypriority", make_nothing},
};

} // namespace tw::ptx
