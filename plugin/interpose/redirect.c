/** Calls of objects that are in the process already. Each keeps the addresses of the functions that it takes from others in a table of
 *  its own (its GOT), one relocation for each; where such a relocation names a function of NCCL's that is wrapped, the address
 *  becomes the wrapper's. Tables that were made read-only once they were filled (RELRO) are writable for that moment. */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin/interpose/interpose.h"
#include "plugin/interpose/nccl_calls.h"

#if defined(__x86_64__)
#define IS_CALL(type) ((type) == R_X86_64_JUMP_SLOT)
#define IS_ADDRESS(type) ((type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_CALL(type) ((type) == R_AARCH64_JUMP_SLOT)
#define IS_ADDRESS(type) ((type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#else
#error "which relocations name a function on this processor?"
#endif

/** A place that holds the address of a function of NCCL's. */
typedef struct place {
    void **at;
    void *was, *to;
    int is_protected; /**< RELRO */
} place_t;

typedef struct places {
    place_t *items;
    size_t n, max;
    int is_short; /**< out of memory */
} places_t;

/** What the dynamic section of an object says. */
typedef struct object {
    const char *name;
    uintptr_t base;
    uintptr_t first, end; /**< its addresses */
    uintptr_t relro_first, relro_end;
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * calls, *relocations;
    size_t n_calls, n_relocations;
} object_t;

/* ---- what there is ----------------------------------------------------------------------------------------- */

/** Which of the real functions is at this name; its wrapper in `to`. NULL: it is none of them. */
static void *find_wrapped(const char *name, void **to)
{
    if (strncmp(name, "nccl", 4) != 0) {
        return NULL;
    }
#define WRAPPER(wrapped)                         \
    if (strcmp(name, #wrapped) == 0) {           \
        __typeof__(&wrapped) function = wrapped; \
        memcpy(to, &function, sizeof(*to));      \
        return tw_ip_real_at(name);              \
    }
    TW_IP_WRAPPED(WRAPPER)
#undef WRAPPER
    return NULL;
}

static void add_place(places_t *places, place_t place)
{
    if (places->n == places->max) {
        size_t wanted = places->max > 0 ? 2 * places->max : 64;
        place_t *larger = realloc(places->items, wanted * sizeof(*larger));
        if (larger == NULL) {
            places->is_short = 1;
            return;
        }
        places->items = larger;
        places->max = wanted;
    }
    places->items[places->n++] = place;
}

static int is_inside(const object_t *object, uintptr_t at)
{
    return at >= object->first && at < object->end;
}

/** What points at NCCL's function, or, where the linker looks calls up one by one, will. */
static void look_at(const object_t *object, const ElfW(Rela) * relocation, places_t *places)
{
    unsigned long type = ELF64_R_TYPE(relocation->r_info);
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    uintptr_t at = object->base + relocation->r_offset;
    void *to = NULL;

    if ((!IS_CALL(type) && !IS_ADDRESS(type)) || symbol->st_name == 0) {
        return;
    }
    void *real = find_wrapped(object->strings + symbol->st_name, &to);
    void **holds = (void **)at; /* where the linker puts an address */
    int is_open = IS_CALL(type) && is_inside(object, (uintptr_t)*holds);
    if (real != NULL && (*holds == real || is_open)) {
        add_place(places, (place_t){holds, *holds, to, at >= object->relro_first && at < object->relro_end});
    }
}

static void look_at_all(const object_t *object, const ElfW(Rela) * relocations, size_t n, places_t *places)
{
    for (size_t i = 0; i < n; i++) {
        look_at(object, &relocations[i], places);
    }
}

/** The dynamic linker of glibc turns these into addresses, but for the vDSO's. */
static uintptr_t address_of(const object_t *object, uintptr_t value)
{
    return value >= object->base ? value : object->base + value;
}

static void read_entry(object_t *object, const ElfW(Dyn) * entry)
{
    uintptr_t at = address_of(object, entry->d_un.d_ptr);

    switch (entry->d_tag) {
    case DT_SYMTAB:
        object->symbols = (const ElfW(Sym) *)at;
        break;
    case DT_STRTAB:
        object->strings = (const char *)at;
        break;
    case DT_JMPREL:
        object->calls = (const ElfW(Rela) *)at;
        break;
    case DT_PLTRELSZ:
        object->n_calls = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
    case DT_RELA:
        object->relocations = (const ElfW(Rela) *)at;
        break;
    case DT_RELASZ:
        object->n_relocations = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
    default:
        break;
    }
}

static void read_dynamic(object_t *object, const ElfW(Dyn) * dynamic)
{
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        read_entry(object, entry);
    }
}

static const ElfW(Dyn) * read_segments(const struct dl_phdr_info *info, object_t *object)
{
    const ElfW(Dyn) *dynamic = NULL;

    object->first = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t first = info->dlpi_addr + header->p_vaddr, end = first + header->p_memsz;
        if (header->p_type == PT_LOAD) {
            object->first = first < object->first ? first : object->first;
            object->end = end > object->end ? end : object->end;
        } else if (header->p_type == PT_GNU_RELRO) {
            object->relro_first = first;
            object->relro_end = end;
        } else if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)first;
        }
    }
    return dynamic;
}

/** This library and NCCL itself stay as they are. */
static int is_ours_or_nccls(const object_t *object)
{
    return is_inside(object, (uintptr_t)&find_wrapped) ||
           is_inside(object, (uintptr_t)tw_ip_real_at("ncclAllReduce"));
}

static int look_at_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    object_t object = {.name = info->dlpi_name, .base = info->dlpi_addr};
    const ElfW(Dyn) *dynamic = read_segments(info, &object);

    (void)size;
    if (dynamic == NULL || is_ours_or_nccls(&object)) {
        return 0;
    }
    read_dynamic(&object, dynamic);
    if (object.symbols != NULL && object.strings != NULL) {
        look_at_all(&object, object.calls, object.calls != NULL ? object.n_calls : 0, arg);
        look_at_all(&object, object.relocations, object.relocations != NULL ? object.n_relocations : 0, arg);
    }
    return 0;
}

/* ---- changing it ------------------------------------------------------------------------------------------- */

static int protect(const place_t *place, int protection)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)place->at;

    return mprotect((void *)(at / page * page), page, protection);
}

/** An address is aligned, and so within one page. */
static int set(const place_t *place, void *value)
{
    if (place->is_protected && protect(place, PROT_READ | PROT_WRITE) != 0) {
        tw_error("nccl: the calls of this job cannot be redirected: mprotect: %s; nothing is quantized",
                 strerror(errno));
        return -1;
    }
    __atomic_store_n(place->at, value, __ATOMIC_RELEASE);
    if (place->is_protected && protect(place, PROT_READ) != 0) {
        tw_warn("nccl: a table of addresses stays writable: mprotect: %s", strerror(errno));
    }
    return 0;
}

/** All or none. */
static int set_all(const places_t *places)
{
    for (size_t i = 0; i < places->n; i++) {
        if (set(&places->items[i], places->items[i].to) == 0) {
            continue;
        }
        while (i-- > 0) {
            (void)set(&places->items[i], places->items[i].was);
        }
        return -1;
    }
    return (int)places->n;
}

int tw_nccl_redirect(void)
{
    places_t places = {0};
    int n = -1;

    if (tw_ip_real_at("ncclAllReduce") == NULL) {
        tw_error(
            "nccl: the calls of this job cannot be redirected: there is no libnccl.so.2 here; nothing is "
            "quantized");
        return -1;
    }
    (void)dl_iterate_phdr(look_at_object, &places);
    if (places.is_short) {
        tw_error("nccl: the calls of this job cannot be redirected: out of memory; nothing is quantized");
    } else {
        n = set_all(&places);
    }
    free(places.items);
    return n;
}
