/* Rotary embedding on the CPU: plain C11, compiled without headers of Python or torch.
 *
 * A call describes one or two tensors by pointers, sizes and strides, and the angles either as rows of cos and sin or as
 * positions with a two-level table. Every tensor is processed in its own memory order, and large calls run in torch's
 * thread pool. The parts are rows.inc (the loops), vectors.inc (instruction sets), threads.inc, tensors.inc and tables.inc.
 * attention.inc is causal attention, a function of its own that Python calls. */
#define _DEFAULT_SOURCE /* madvise */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define API __attribute__((visibility("default")))
/* increased whenever `struct call` or an exported function changes; Python refuses a library with another number */
#define ABI 3

enum { F32, BF16, F16 };
enum { HALF, INTERLEAVED };
enum { DONE, OUT_OF_RANGE, NO_MEMORY };
/* how rows are written: full vectors; partial vectors or shared cache lines; full vectors by non-temporal stores */
enum { FULL, PARTIAL, STREAMED };

enum { MAX_AXES = 8 };
/* cos and sin of one tile stay in the cache while every head reads them: in L1 for float32, whose speed is limited by memory; in L2
 * for 16-bit types, whose speed is limited by arithmetic and which profit more from longer lines */
enum { TILE_BYTES = 32 << 10, TILE_BYTES_NARROW = 128 << 10 };
/* how far ahead of the current row x is prefetched */
enum { PREFETCH_BYTES = 2 << 10, CACHE_LINE = 64 };
/* a compiler barrier: memory accesses are not moved across it */
#define IN_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)
/* a result of this many bytes would evict everything from the caches, so non-temporal stores bypass them; not if its memory is new,
 * because the system then fills its pages with zeros through the caches */
enum { STREAMED_BYTES = 16 << 20, LONGEST_VECTOR = 64 };
/* below this many elements, waking threads costs more than it saves */
enum { SERIAL_ELEMENTS = 128 << 10 };
/* work is divided into chunks of about CHUNK_ELEMENTS, and a thread gets at least LEAST_CHUNKS of them */
enum { CHUNK_ELEMENTS = 4 << 10, LEAST_CHUNKS = 8, MOST_CHUNKS = 1 << 20 };

/* The distance from one entry of an axis to the next: bytes of x and y, floats of the table. */
struct step {
    int64_t x_step, y_step, table_step;
};

/* A two-dimensional part of a tensor: `lines` lines of `rows` rows. x and y point to the first rotated dimension of the first row.
 * `before` and `after` are the bytes around the `rotated` bytes; they are copied. */
struct sheet {
    const char *x;
    char *y;
    const float *cos, *sin;
    ptrdiff_t pairs;
    size_t before, rotated, after;
    int64_t lines, rows;
    struct step outer, inner;
};
typedef void (*sheet_function)(const struct sheet *);

/* What to prefetch while a row is rotated: a later row of its line, and half a row of the next line. */
struct upcoming {
    const char *later, *next;
};

#include "vectors.inc"

/* Copies sequentially and inline: the C library's memcpy starts at both ends, which interrupts sequential stores. */
ALWAYS void copy(char *y, const char *x, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) memcpy(y + i, x + i, 16);
    for (; i + 2 <= count; i += 2) memcpy(y + i, x + i, 2);
}

#define V(name) portable_##name
#define TARGET PORTABLE
#define TARGET_ENTRY
#include "rows.inc"

#if defined(__aarch64__)
#define V(name) neon_##name
#define TARGET NEON
#define TARGET_ENTRY
#include "rows.inc"
#elif defined(__x86_64__)
#define V(name) avx2_##name
#define TARGET AVX2
#define TARGET_ENTRY __attribute__((target("avx2,fma,f16c")))
#include "rows.inc"
#define V(name) avx512_##name
#define TARGET AVX512
#define TARGET_ENTRY __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))
#include "rows.inc"
#endif

struct isa {
    const char *name;
    int lanes, sequential;
    int narrower_next; /* whether the next set in ISAS computes the same bits with half the lanes */
    const sheet_function (*sheets)[2][2][2][3]; /* by dtype, layout of x, layout of y, back, mode */
    int (*runs_here)(void);
};

static int always(void) { return 1; }
#if defined(__x86_64__)
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
static int has_avx512(void) { return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }
#endif

/* widest first */
static const struct isa ISAS[] = {
#if defined(__aarch64__)
    {"neon", neon_LANES, neon_SEQUENTIAL, 0, neon_sheets, always},
#elif defined(__x86_64__)
    {"avx512", avx512_LANES, avx512_SEQUENTIAL, 1, avx512_sheets, has_avx512},
    {"avx2", avx2_LANES, avx2_SEQUENTIAL, 0, avx2_sheets, has_avx2},
#endif
    {"portable", portable_LANES, portable_SEQUENTIAL, 0, portable_sheets, always},
};
enum { ISA_COUNT = sizeof ISAS / sizeof *ISAS };
static const struct isa *current_isa = &ISAS[ISA_COUNT - 1];

API int ropewalk_abi(void) { return ABI; }

/* Return the name of instruction set `index`, "" if this machine does not support it, or NULL after the last. */
API const char *ropewalk_isa(int index) {
    return index >= ISA_COUNT ? NULL : ISAS[index].runs_here() ? ISAS[index].name : "";
}

API void ropewalk_choose_isa(int index) { current_isa = &ISAS[index]; }

#include "threads.inc"

/* One call as the Python side packs it. `plan` depends only on shapes and is cached there; it is followed by sizes[ndim], strides
 * of x[ndim] and strides of y[ndim], in elements, for each tensor. */
struct call {
    const char *x[2];
    char *y[2];
    /* `batches` x `seq` positions, or offset ... offset + seq - 1 if positions is NULL */
    const int64_t *positions;
    int64_t offset;
    /* cos and sin, with strides in floats; NULL if they are computed from positions */
    const float *cos, *sin;
    int64_t seq_step, batch_step, head_step;
    int64_t position_seq_step, position_batch_step, batches;
    struct {
        const double *low_cos, *low_sin, *high_cos, *high_sin; /* [1 << bits, pairs] */
        int64_t bits;
        double magnitude;
    } levels;
    struct {
        int64_t tensors, ndim, dtype, layout_in, layout_out, back, start, pairs;
        int64_t seq_axis, batch_axis, head_axis; /* -1 if there is none */
    } plan;
};

#include "tensors.inc"
#include "tables.inc"
#if defined(__aarch64__)
#include "attention.inc"
#endif

/* Carry out the call in `words`. Return DONE, OUT_OF_RANGE if a position is beyond the two-level table, or NO_MEMORY. */
API int ropewalk_rotate(const void *words) {
    struct call call;
    struct work work;
    float *table = NULL;
    memcpy(&call, words, sizeof call);
    const int64_t *sizes = (const int64_t *)((const char *)words + sizeof call);
    if (!call.cos) {
        int status = make_table(&call, sizes[call.plan.seq_axis], &table);
        if (status != DONE) return status;
    }
    int64_t elements = 0;
    work.tensors = (int)call.plan.tensors;
    for (int i = 0; i < work.tensors; i++)
        elements += read_tensor(&call, i, sizes + i * 3 * call.plan.ndim, &work.tensor[i]);
    work.chunks = chunks_of(elements);
    run_parallel(work.chunks, rotate_chunks, &work);
    free(table);
    return DONE;
}
