/** Redirects NCCL calls of shared objects that the process has loaded. Each object keeps the addresses of
 *  other objects' functions in a table, the GOT, with one relocation for each. If a relocation names a
 *  wrapped function of NCCL, its address is replaced by the wrapper's. Tables that the linker has made
 *  read-only (RELRO) are made writable for that moment. Objects that are loaded later are handled when the
 *  next communicator is made. */
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "plugin/interpose/interpose.h"
#include "plugin/interpose/meet.h"
#include "plugin/interpose/redirect.h"

#if defined(__x86_64__)
#define IS_CALL(type) ((type) == R_X86_64_JUMP_SLOT)
#define IS_ADDRESS(type) ((type) == R_X86_64_GLOB_DAT || (type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_CALL(type) ((type) == R_AARCH64_JUMP_SLOT)
#define IS_ADDRESS(type) ((type) == R_AARCH64_GLOB_DAT || (type) == R_AARCH64_ABS64)
#else
#error "which relocations name a function on this processor?"
#endif

/** One address of a function of NCCL in an object's table, to be replaced by `to`. */
typedef struct place {
    void **at;
    void *to;
    int is_protected; /**< 1: in memory that the linker has made read-only (RELRO) */
} place_t;

typedef struct places {
    place_t *items;
    size_t n, max;
    int is_short; /**< 1: out of memory */
} places_t;

/** A shared object: its addresses, and tables from its dynamic section. */
typedef struct object {
    const char *name;
    uintptr_t base;
    uintptr_t first, end;             /**< addresses at which the object is loaded */
    uintptr_t relro_first, relro_end; /**< addresses that the linker has made read-only */
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * calls, *relocations;
    size_t n_calls, n_relocations;
} object_t;

/* ---- places to redirect -------------------------------------------------------------------------------- */

/** Returns the real address of a wrapped function by name, and its wrapper in *to. NULL: there is none. */
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
    places->is_short |= !tw_grow(&places->items, &places->max, places->n + 1, sizeof(*places->items));
    if (!places->is_short) {
        places->items[places->n++] = place;
    }
}

static int object_has(const object_t *object, uintptr_t at)
{
    return at >= object->first && at < object->end;
}

/** Add a relocation's place if it holds a wrapped function's address, or will once the call is resolved. */
static void scan_relocation(const object_t *object, const ElfW(Rela) * relocation, places_t *places)
{
    unsigned long type = ELF64_R_TYPE(relocation->r_info);
    const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
    uintptr_t at = object->base + relocation->r_offset;
    void *to = NULL;
    if ((!IS_CALL(type) && !IS_ADDRESS(type)) || symbol->st_name == 0) {
        return;
    }
    void *real = find_wrapped(object->strings + symbol->st_name, &to);
    void **holds = (void **)at; /* the linker stores the function's address here */
    int is_open = IS_CALL(type) && object_has(object, (uintptr_t)*holds);
    if (real && (*holds == real || is_open)) {
        add_place(places, (place_t){holds, to, at >= object->relro_first && at < object->relro_end});
    }
}

static void scan_relocations(const object_t *object, const ElfW(Rela) * relocations, size_t n,
                             places_t *places)
{
    for (size_t i = 0; i < n; i++) {
        scan_relocation(object, &relocations[i], places);
    }
}

/** Returns the absolute address of a value in the dynamic section. glibc's linker has made the values
 *  absolute, but the vDSO's are still relative to its base. */
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

static uintptr_t page_bytes(void)
{
    return (uintptr_t)sysconf(_SC_PAGESIZE);
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
            object->relro_end =
                end / page_bytes() * page_bytes(); /* the linker leaves a last, partial page writable */
        } else if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)first;
        }
    }
    return dynamic;
}

/** Returns 1 for this library and for NCCL, which are not redirected. */
static int is_ours_or_nccls(const object_t *object)
{
    return object_has(object, (uintptr_t)&find_wrapped) ||
           object_has(object, (uintptr_t)tw_ip_real_at("ncclAllReduce"));
}

static int look_at_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    object_t object = {.name = info->dlpi_name, .base = info->dlpi_addr};
    const ElfW(Dyn) *dynamic = read_segments(info, &object);
    (void)size;
    if (!dynamic || is_ours_or_nccls(&object)) {
        return 0;
    }
    read_dynamic(&object, dynamic);
    if (object.symbols && object.strings) {
        scan_relocations(&object, object.calls, object.calls ? object.n_calls : 0, arg);
        scan_relocations(&object, object.relocations, object.relocations ? object.n_relocations : 0, arg);
    }
    return 0;
}

/* ---- changing places ----------------------------------------------------------------------------------- */

/** Change the protection of the page that holds a place: one page, because places are aligned. */
static int protect(const place_t *place, int protection)
{
    uintptr_t page = page_bytes();
    return mprotect((void *)((uintptr_t)place->at / page * page), page, protection);
}

static void close_pages(const place_t *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].is_protected && protect(&items[i], PROT_READ) != 0) {
            tw_warn("nccl: a table of addresses stays writable: mprotect: %s", strerror(errno));
        }
    }
}

/** Make the protected pages of all places writable, or none of them. Returns 0 or errno. */
static int open_pages(const place_t *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (items[i].is_protected && protect(&items[i], PROT_READ | PROT_WRITE) != 0) {
            int error = errno;
            close_pages(items, i);
            return error;
        }
    }
    return 0;
}

/** Set all addresses or none: all that can fail comes before the first. Returns 0 or errno. */
static int set_all(const places_t *places)
{
    int error = places->is_short ? ENOMEM : open_pages(places->items, places->n);
    if (error != 0) {
        return error;
    }
    for (size_t i = 0; i < places->n; i++) {
        __atomic_store_n(places->items[i].at, places->items[i].to, __ATOMIC_RELEASE);
    }
    close_pages(places->items, places->n);
    return 0;
}

/* ---- redirecting the process --------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int is_on;                /**< 1: calls have been redirected */
static int is_refused;           /**< 1: redirecting has failed, and is not tried again */
static int is_entered;           /**< 1: the job has called a wrapper that makes a communicator */
static unsigned long long known; /**< how many objects the process had loaded at the last scan */

typedef struct scan {
    places_t places;
    int error; /**< errno */
} scan_t;

/** Scan all objects of the process, and set their addresses. A callback of dl_iterate_phdr that runs once (it
 *  returns 1): the linker holds its lock meanwhile, so no object is loaded or unloaded. */
static int scan_all(struct dl_phdr_info *info, size_t size, void *arg)
{
    scan_t *scan = arg;
    (void)size;
    if (info->dlpi_adds != known) {
        known = info->dlpi_adds;
        (void)dl_iterate_phdr(look_at_object, &scan->places);
        scan->error = set_all(&scan->places);
    }
    return 1;
}

static void say_refused(int error)
{
    is_refused = 1;
    if (is_on) {
        tw_error("nccl: the calls of objects that were loaded later cannot be redirected: their tables of "
                 "addresses cannot be changed (%s); this rank makes no more communicators",
                 strerror(error));
    } else {
        tw_error("nccl: the calls of this job cannot be redirected: tables of addresses cannot be changed "
                 "(%s); nothing is quantized",
                 strerror(error));
    }
}

/** Redirect calls of all loaded objects. Returns the number changed, or -1. The caller holds `lock`. */
static int redirect(void)
{
    scan_t scan = {.error = 0};
    if (is_refused) {
        return -1;
    }
    if (!tw_ip_real_at("ncclAllReduce")) {
        tw_error("nccl: the calls of this job cannot be redirected: there is no libnccl.so.2 here; nothing "
                 "is quantized");
        is_refused = 1;
        return -1;
    }
    (void)dl_iterate_phdr(scan_all, &scan);
    if (scan.error != 0) {
        say_refused(scan.error);
    }
    is_on = is_on || (!is_refused && scan.places.n > 0);
    free(scan.places.items);
    return is_refused ? -1 : (int)scan.places.n;
}

/** Redirect. The first time, register at the job's registry: ids already in use name no registry. */
static int redirect_and_meet(void)
{
    int was_on = is_on, n = redirect();
    if (n > 0 && !was_on && tw_ip_meeting_of_job() != TW_OK) {
        is_refused = 1;
        return -1;
    }
    return n;
}

int tw_nccl_redirect(void)
{
    (void)pthread_mutex_lock(&lock);
    int n = redirect_and_meet();
    (void)pthread_mutex_unlock(&lock);
    return n;
}

int tw_nccl_is_wrapped(void)
{
    return __atomic_load_n(&is_entered, __ATOMIC_RELAXED);
}

tw_status_t tw_ip_redirect_loaded(void)
{
    tw_status_t status = TW_OK;
    __atomic_store_n(&is_entered, 1, __ATOMIC_RELAXED);
    (void)pthread_mutex_lock(&lock);
    if (is_on) {
        status = redirect() >= 0 ? TW_OK : TW_ERR_UNSUPPORTED;
    }
    (void)pthread_mutex_unlock(&lock);
    return status;
}
