/** The functions of a module into kernels that warps run. */
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/gpu/ptx/program.h"

namespace tw::ptx
{

class Translator;

/** One instruction of the text while it is translated. */
struct Statement {
    Translator *translator;
    Insn insn;
    std::string opcode;                /**< with its modifiers */
    std::string word;                  /**< the first part of it */
    std::set<std::string> modifiers;   /**< the others */
    std::vector<std::string> operands; /**< a list in braces or brackets is one */
    std::vector<std::string> label;    /**< where it goes, if somewhere */

    bool has(const char *modifier) const
    {
        return modifiers.count(modifier) != 0;
    }
    /** The index in `names` of the modifier that it has; fails without one. */
    u8 which(const std::vector<const char *> &names) const;
    Operand operand(size_t i, Type type);
    /** d, a, b, c of one type, as many as there are. */
    void take(Handler run, Type type, size_t n);
    /** d|d2 */
    void take_pair(size_t i, Type first, Type second);
    void take_vector(size_t i, Type type);
    /** [register + offset] */
    void take_address(size_t i, Operand *base, s64 *offset);
    u64 immediate(size_t i) const;
    [[noreturn]] void unknown() const;
};

/** Makes the instruction of a statement. */
using Maker = void (*)(Statement &);
/** Of an opcode without its modifiers; NULL: it is not known. */
using MakerOf = Maker (*)(const std::string &word);

std::unique_ptr<Kernel> translate(const Module &module, const Function &entry, MakerOf maker_of);

/** The parts of a text between commas or others. */
std::vector<std::string> split_at(const std::string &text, char at);
/** Of "{a,b}" or "(a,b)": a, b; of "a" itself. */
std::vector<std::string> list_in(const std::string &text);

class Translator
{
  public:
    Translator(const Module &the_module, Kernel *the_kernel, MakerOf the_maker_of)
        : module(the_module), kernel(the_kernel), maker_of(the_maker_of)
    {
    }
    void run(const Function &entry);

    Operand operand(const std::string &text, Type type);
    Operand constant(u64 value, Type type);
    /** Of a function's argument: its place in the thread's memory. */
    u32 argument(const std::string &name) const;
    /** Note that a call goes there. Returns the places of its arguments and results, or NULL. */
    struct Frame {
        const Function *function;
        std::vector<Slot> parameters, results;
        u32 begin = 0;
    };
    const Frame *call(const std::string &name, u32 *index);
    Space space_of(const std::string &name) const;
    const Function *current() const
    {
        return function;
    }
    std::string place() const;

  private:
    struct Symbol {
        Space space;
        u64 offset;
    };
    struct Fix {
        size_t insn;
        std::vector<std::string> labels;
    };

    Operand reg(u8 width);
    u32 local(u32 bytes, u32 align);
    void translate_function(Frame *frame);
    void bind_parameters(const Frame &frame);
    Frame make_frame(const Function &f);
    bool declaration();
    void registers();
    void variable();
    void label();
    void instruction();
    std::vector<std::string> operands();
    void finish();
    const std::string &text(size_t ahead = 0) const;

    const Module &module;
    Kernel *kernel;
    MakerOf maker_of;
    const Function *function = nullptr;
    size_t at = 0;
    int line = 0, source_file = 0, source_line = 0;
    std::vector<Frame> frames;
    std::vector<std::pair<size_t, u32>> calls;
    std::map<std::string, Operand> names;
    std::map<std::string, Symbol> symbols;
    std::map<std::string, u32> labels;
    std::map<std::string, std::vector<std::string>> tables;
    std::vector<Fix> fixes;
    std::map<std::pair<u8, u64>, u32> constants;
};

} // namespace tw::ptx
