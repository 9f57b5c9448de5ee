/* Rotary embedding on the CPU: plain C11 behind one call, no headers of Python or torch.
 *
 * A call describes one or two tensors by pointers, sizes and strides, and the angles either as rows of cos and sin or as
 * positions with a two-level table. Every tensor is walked in the order of its own memory, and the work goes through
 * torch's thread pool when it is large enough. The row kernels are in rows.inc, the vectors in vectors.inc. */
#define _DEFAULT_SOURCE /* madvise */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define API __attribute__((visibility("default")))
/* raised whenever `struct call` changes; the Python side refuses a library of another number */
#define ABI 2

enum { F32, BF16, F16 };
enum { HALF, INTERLEAVED };
enum { DONE, FAR, NO_MEMORY };
/* how rows are written: vectors alone; with edges or lines of the cache shared; vectors past the caches */
enum { WHOLE, EDGED, STREAMED };

enum { MAX_AXES = 8 };
/* cos and sin of one tile stay in the cache while head after head reads them: in the first level where memory sets the
 * pace, in the second where arithmetic does and longer lines are worth more */
enum { TILE_BYTES = 32 << 10, TILE_BYTES_NARROW = 128 << 10 };
/* how far ahead of the row that is turned x is fetched */
enum { FETCHED_BYTES = 2 << 10, CACHE_LINE = 64 };
/* the compiler keeps what comes before it before what comes after it */
#define IN_ORDER() __atomic_signal_fence(__ATOMIC_SEQ_CST)
/* a result of this many bytes would push everything else out of the caches, itself included; it is written past them unless
 * its memory is new, for then the system has just filled it with zeros through the caches */
enum { STREAMED_BYTES = 16 << 20, LONGEST_VECTOR = 64 };
/* below this many elements waking threads costs more than it saves */
enum { SERIAL_ELEMENTS = 128 << 10 };
/* the work is dealt out in shares of about SHARE_ELEMENTS, to a thread never fewer than LEAST_SHARES */
enum { SHARE_ELEMENTS = 4 << 10, LEAST_SHARES = 8, MOST_SHARES = 1 << 20 };

/* From one entry of an axis to the next: bytes of x and y, floats of the table. */
struct step {
    int64_t x_step, y_step, table_step;
};

/* `lines` lines of `rows` rows along two axes; x and y point at the first turned dimension of the first row. `before` and
 * `after` bytes around the `turned` ones are copied. */
struct sheet {
    const char *x;
    char *y;
    const float *cos, *sin;
    ptrdiff_t pairs;
    size_t before, turned, after;
    int64_t lines, rows;
    struct step outer, inner;
};
typedef void (*sheet_function)(const struct sheet *);

/* Rows to be fetched while another is turned: a later one of its line, and half of one of the next line. */
struct coming {
    const char *later, *next;
};

#include "vectors.inc"

/* In order of memory and in the loop itself: a library's memcpy starts at both ends, which ends the stream of stores. */
ALWAYS void copy(char *y, const char *x, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) memcpy(y + i, x + i, 16);
    for (; i + 2 <= count; i += 2) memcpy(y + i, x + i, 2);
}

#define V(name) portable_##name
#define TARGET PORTABLE
#define TARGET_ENTRY
#include "rows.inc"
#undef V
#undef TARGET
#undef TARGET_ENTRY

#if defined(__aarch64__)
#define V(name) neon_##name
#define TARGET NEON
#define TARGET_ENTRY
#include "rows.inc"
#undef V
#undef TARGET
#undef TARGET_ENTRY
#elif defined(__x86_64__)
#define V(name) avx2_##name
#define TARGET AVX2
#define TARGET_ENTRY __attribute__((target("avx2,fma,f16c")))
#include "rows.inc"
#undef V
#undef TARGET
#undef TARGET_ENTRY
#define V(name) avx512_##name
#define TARGET AVX512
#define TARGET_ENTRY __attribute__((target("avx512f,avx512bw,avx2,fma,f16c")))
#include "rows.inc"
#undef V
#undef TARGET
#undef TARGET_ENTRY
#endif

/* ---- which instructions ---- */

struct isa {
    const char *name;
    int lanes, orderly;
    int halves; /* the next set gives the same bits with half the lanes */
    const sheet_function (*sheets)[2][2][2][3]; /* by dtype, layout of x, layout of y, back, way */
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
    {"neon", neon_LANES, neon_ORDERLY, 0, neon_sheets, always},
#elif defined(__x86_64__)
    {"avx512", avx512_LANES, avx512_ORDERLY, 1, avx512_sheets, has_avx512},
    {"avx2", avx2_LANES, avx2_ORDERLY, 0, avx2_sheets, has_avx2},
#endif
    {"portable", portable_LANES, portable_ORDERLY, 0, portable_sheets, always},
};
enum { ISA_COUNT = sizeof ISAS / sizeof *ISAS };
static const struct isa *chosen = &ISAS[ISA_COUNT - 1];

API int ropewalk_abi(void) { return ABI; }

/* The name of instruction set `index` if this machine has it, else "". NULL after the last. */
API const char *ropewalk_isa(int index) {
    return index >= ISA_COUNT ? NULL : ISAS[index].runs_here() ? ISAS[index].name : "";
}

API void ropewalk_choose_isa(int index) { chosen = &ISAS[index]; }

/* ---- threads ---- */

typedef void (*share_function)(int64_t first, int64_t last, void *work);
/* torch's `torch_parallel_for`: its own pool, its own number of threads */
typedef int32_t (*torch_pool)(int64_t first, int64_t last, int64_t least, share_function, void *work);
/* older torch: the OpenMP runtime it has loaded; linking our own would start a second pool */
typedef void (*openmp_pool)(void (*)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*openmp_number)(void);

static torch_pool in_torch;
static openmp_pool in_openmp;
static openmp_number openmp_thread, openmp_threads, openmp_most;

API void ropewalk_use_torch(torch_pool pool) { in_torch = pool; }
API void ropewalk_use_openmp(openmp_pool pool, openmp_number thread, openmp_number threads, openmp_number most) {
    in_openmp = pool, openmp_thread = thread, openmp_threads = threads, openmp_most = most;
}
/* a forked child has the parent's pool but not its threads, and would wait for them for ever */
API void ropewalk_serial(void) { in_torch = NULL, in_openmp = NULL; }

struct dealt {
    share_function run;
    void *work;
    int64_t shares;
};
static void openmp_share(void *data) {
    const struct dealt *dealt = data;
    int64_t thread = openmp_thread(), threads = openmp_threads();
    dealt->run(dealt->shares * thread / threads, dealt->shares * (thread + 1) / threads, dealt->work);
}

static int64_t shares_of(int64_t elements) {
    int64_t shares = elements / SHARE_ELEMENTS;
    return elements < SERIAL_ELEMENTS ? 1 : shares < MOST_SHARES ? shares : MOST_SHARES;
}

static void deal(int64_t shares, share_function run, void *work) {
    torch_pool torch = in_torch;
    openmp_pool openmp = in_openmp;
    if (shares > 1 && torch && torch(0, shares, LEAST_SHARES, run, work) == 0) return;
    if (shares > 1 && openmp) {
        struct dealt dealt = {run, work, shares};
        int64_t most = openmp_most(), useful = shares / LEAST_SHARES;
        openmp(openmp_share, &dealt, (unsigned)(useful < most ? useful : most), 0);
        return;
    }
    run(0, shares, work);
}

/* ---- new memory ---- */

enum { LARGE_PAGE = 2 << 20, LARGEST_SMALL_PAGE = 64 << 10 };

/* Whether the system has yet to give y its pages, judged by the one in its middle. */
static int is_new(const char *y, int64_t bytes) {
#if defined(__linux__)
    unsigned char there = 0;
    const uintptr_t middle = ((uintptr_t)y + (uintptr_t)bytes / 2) & ~(uintptr_t)(LARGEST_SMALL_PAGE - 1);
    return mincore((void *)middle, 1, &there) != 0 || !(there & 1);
#else
    (void)y, (void)bytes;
    return 1;
#endif
}

/* The system hands out one large page in a fraction of the time that 512 small ones take, which costs more than turning
 * does; it must be asked before the first write. */
static void ask_for_large_pages(char *y, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    const uintptr_t first = ((uintptr_t)y + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1);
    const uintptr_t last = ((uintptr_t)y + (uintptr_t)bytes) & ~(uintptr_t)(LARGE_PAGE - 1);
    if (first < last) madvise((void *)first, last - first, MADV_HUGEPAGE);
#else
    (void)y, (void)bytes;
#endif
}

/* ---- the call ---- */

/* As the Python side packs it. `plan` depends on shapes alone and is kept there from call to call; it is followed by
 * sizes[ndim], strides of x[ndim] and strides of y[ndim], in elements, for each tensor. */
struct call {
    const char *x[2];
    char *y[2];
    /* rows to be made: `batches` x `seq` positions, or offset ... offset + seq - 1 where positions is NULL */
    const int64_t *positions;
    int64_t offset;
    /* rows of cos and sin with their strides in floats; NULL if they are to be made */
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
        int64_t seq_axis, batch_axis, head_axis; /* -1 where there is none */
    } plan;
};

struct axis {
    int64_t size;
    struct step step;
};

/* One tensor, its axes outermost first, in the order of memory. */
struct tensor {
    struct sheet first; /* of one row */
    int axes;
    struct axis axis[MAX_AXES];
    int64_t outer_rows, tile;
    sheet_function turn;
};

struct work {
    int tensors;
    struct tensor tensor[2];
    int64_t shares;
};

static int64_t min(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t magnitude_of(int64_t step) { return step < 0 ? -step : step; }

static int lies_outside(const struct axis *one, const struct axis *other) {
    int64_t y_one = magnitude_of(one->step.y_step), y_other = magnitude_of(other->step.y_step);
    return y_one != y_other ? y_one > y_other : magnitude_of(one->step.x_step) > magnitude_of(other->step.x_step);
}

static int continues(const struct axis *outer, const struct axis *inner) {
    return outer->step.x_step == inner->step.x_step * inner->size && outer->step.y_step == inner->step.y_step * inner->size &&
           outer->step.table_step == inner->step.table_step * inner->size;
}

/* Put an axis in its place by stride: writing along memory is worth a factor of two to four. */
static void insert_axis(struct tensor *tensor, struct axis axis) {
    int at = tensor->axes++;
    for (; at > 0 && lies_outside(&axis, &tensor->axis[at - 1]); at--) tensor->axis[at] = tensor->axis[at - 1];
    tensor->axis[at] = axis;
}

/* Make one axis of two that run through memory as one: fewer, longer lines. */
static void merge_axes(struct tensor *tensor) {
    int kept = 0;
    for (int i = 1; i < tensor->axes; i++) {
        struct axis *outer = &tensor->axis[kept], *inner = &tensor->axis[i];
        if (continues(outer, inner)) {
            inner->size *= outer->size;
            *outer = *inner;
        } else {
            tensor->axis[++kept] = *inner;
        }
    }
    tensor->axes = kept + 1;
}

static int64_t tile_of(const struct tensor *tensor, int64_t bytes) {
    const struct axis *inner = &tensor->axis[tensor->axes - 1];
    int64_t rows = bytes / (2 * (int64_t)sizeof(float) * tensor->first.pairs);
    int read_again = 0;
    for (int i = 0; i + 1 < tensor->axes; i++) read_again |= tensor->axis[i].step.table_step == 0;
    return inner->step.table_step && read_again && rows < inner->size ? (rows > 0 ? rows : 1) : inner->size;
}

/* Whether y is worth writing past the caches, and every one of its rows begins where the longest vector may. */
static int streams(const struct tensor *tensor, int64_t bytes) {
    uintptr_t ends = (uintptr_t)tensor->first.y;
    for (int i = 0; i < tensor->axes; i++) ends |= (uintptr_t)tensor->axis[i].step.y_step;
    return bytes >= STREAMED_BYTES && ends % LONGEST_VECTOR == 0;
}

/* Read one tensor's description; the number of its elements. */
static int64_t read_tensor(const struct call *call, int which, const int64_t *sizes, struct tensor *tensor) {
    const int64_t ndim = call->plan.ndim, item = call->plan.dtype == F32 ? 4 : 2;
    const int64_t *x_strides = sizes + ndim, *y_strides = x_strides + ndim;
    int64_t rows = 1;
    tensor->axes = 0;
    for (int64_t i = 0; i + 1 < ndim; i++) {
        rows *= sizes[i];
        int64_t table_step = i == call->plan.seq_axis     ? call->seq_step
                             : i == call->plan.batch_axis ? call->batch_step
                             : i == call->plan.head_axis  ? call->head_step
                                                     : 0;
        if (sizes[i] != 1) insert_axis(tensor, (struct axis){sizes[i], {x_strides[i] * item, y_strides[i] * item, table_step}});
    }
    if (tensor->axes == 0) tensor->axis[tensor->axes++] = (struct axis){.size = 1};
    merge_axes(tensor);

    const struct axis *inner = &tensor->axis[tensor->axes - 1];
    const size_t before = (size_t)(call->plan.start * item), turned = (size_t)(2 * call->plan.pairs * item);
    const char *x = call->x[which];
    char *y = call->y[which];
    const int in_place = x == y;
    tensor->first = (struct sheet){
        .x = x + before,
        .y = y + before,
        .cos = call->cos,
        .sin = call->sin,
        .pairs = call->plan.pairs,
        .before = in_place ? 0 : before,
        .turned = turned,
        .after = in_place ? 0 : (size_t)(sizes[ndim - 1] * item) - before - turned,
        .lines = 1,
        .rows = 1,
        .outer = tensor->axes > 1 ? inner[-1].step : (struct step){0},
        .inner = inner->step,
    };
    const struct isa *isa = chosen;
    if (call->plan.pairs % isa->lanes && isa->halves) isa++;
    /* halves that share a line of the cache, where that matters */
    const int order_matters = isa->orderly && !in_place && call->plan.dtype == F32 && call->plan.layout_out == HALF;
    const int shared = order_matters && turned / 2 % CACHE_LINE;
    const int edges = call->plan.pairs % isa->lanes || tensor->first.before || tensor->first.after || shared;
    const int64_t bytes = rows * sizes[ndim - 1] * item;
    const int fresh = !in_place && bytes >= LARGE_PAGE && is_new(y, bytes);
    if (fresh) ask_for_large_pages(y, bytes);
    const int way = edges ? EDGED : !in_place && !fresh && streams(tensor, bytes) ? STREAMED : WHOLE;
    tensor->turn = isa->sheets[call->plan.dtype][call->plan.layout_in][call->plan.layout_out][call->plan.back][way];
    tensor->outer_rows = inner->size ? rows / inner->size : 0;
    tensor->tile = tile_of(tensor, call->plan.dtype == F32 ? TILE_BYTES : TILE_BYTES_NARROW);
    return rows * sizes[ndim - 1];
}

/* ---- the walk ---- */

static void go(struct sheet *sheet, struct step step, int64_t times) {
    sheet->x += step.x_step * times;
    sheet->y += step.y_step * times;
    sheet->cos += step.table_step * times;
    sheet->sin += step.table_step * times;
}

/* Rows first ... last - 1 of one tile, counted outermost axis first; the tile is `width` entries of the innermost axis
 * from `from`. In a sheet go as many whole lines as the next axis has left, or what is left of one line. */
static void turn_rows(const struct tensor *tensor, int64_t from, int64_t width, int64_t first, int64_t last) {
    const int outer = tensor->axes - 2;
    while (first < last) {
        struct sheet sheet = tensor->first;
        int64_t column = first % width, index = first / width, left = 1;
        go(&sheet, sheet.inner, from + column);
        for (int i = outer; i >= 0; i--) {
            const struct axis *axis = &tensor->axis[i];
            if (i == outer) left = axis->size - index % axis->size;
            go(&sheet, axis->step, index % axis->size);
            index /= axis->size;
        }
        if (column || last - first < width) {
            sheet.rows = min(width - column, last - first);
        } else {
            sheet.rows = width, sheet.lines = min(left, (last - first) / width);
        }
        tensor->turn(&sheet);
        first += sheet.lines * sheet.rows;
    }
}

/* The same share of every tensor, one tensor after the other: alternating between them breaks the streams of stores. */
static void turn_shares(int64_t first, int64_t last, void *data) {
    const struct work *work = data;
    for (int i = 0; i < work->tensors; i++) {
        const struct tensor *tensor = &work->tensor[i];
        const int64_t size = tensor->axis[tensor->axes - 1].size;
        for (int64_t from = 0; from < size; from += tensor->tile) {
            int64_t width = min(tensor->tile, size - from), rows = tensor->outer_rows * width;
            turn_rows(tensor, from, width, rows * first / work->shares, rows * last / work->shares);
        }
    }
}

/* ---- rows from positions ---- */

struct making {
    const struct call *call;
    float *table; /* [rows, 2, pairs]: cos and sin side by side are one stream of memory instead of two */
    int64_t seq, rows, shares;
};

static int64_t position_of(const struct call *call, int64_t batch, int64_t token) {
    if (!call->positions) return call->offset + token;
    return call->positions[batch * call->position_batch_step + token * call->position_seq_step];
}

static int all_near(const struct call *call, int64_t seq) {
    const int64_t reach = (int64_t)1 << (2 * call->levels.bits);
    int far = 0;
    for (int64_t batch = 0; batch < call->batches; batch++)
        for (int64_t token = 0; token < seq; token++) far |= (uint64_t)position_of(call, batch, token) >= (uint64_t)reach;
    return !far;
}

/* Angle addition in double, separate products and sums: bit for bit what the table's own arithmetic gives. */
static void make_rows(int64_t first, int64_t last, void *data) {
    const struct making *making = data;
    const struct call *call = making->call;
    const int64_t pairs = call->plan.pairs, low_mask = ((int64_t)1 << call->levels.bits) - 1;
    const double magnitude = call->levels.magnitude;
    for (int64_t row = making->rows * first / making->shares; row < making->rows * last / making->shares; row++) {
        const int64_t position = position_of(call, row / making->seq, row % making->seq);
        const int64_t low = (position & low_mask) * pairs, high = (position >> call->levels.bits) * pairs;
        const double *low_cos = call->levels.low_cos + low, *low_sin = call->levels.low_sin + low;
        const double *high_cos = call->levels.high_cos + high, *high_sin = call->levels.high_sin + high;
        float *restrict cos = making->table + row * 2 * pairs, *restrict sin = cos + pairs;
        for (int64_t i = 0; i < pairs; i++) {
            cos[i] = (float)((high_cos[i] * low_cos[i] - high_sin[i] * low_sin[i]) * magnitude);
            sin[i] = (float)((high_sin[i] * low_cos[i] + high_cos[i] * low_sin[i]) * magnitude);
        }
    }
}

static int make_table(struct call *call, int64_t seq, float **table) {
    if (!all_near(call, seq)) return FAR;
    const int64_t rows = call->batches * seq;
    *table = malloc((size_t)(rows * call->plan.pairs) * 2 * sizeof(float));
    if (!*table && rows) return NO_MEMORY;
    struct making making = {call, *table, seq, rows, shares_of(2 * rows * call->plan.pairs)};
    deal(making.shares, make_rows, &making);
    call->cos = *table, call->sin = *table + call->plan.pairs;
    call->seq_step = 2 * call->plan.pairs, call->head_step = 0;
    call->batch_step = call->batches > 1 ? seq * call->seq_step : 0;
    return DONE;
}

/* Turn what `words` describes: 0, or 1 if a position lies beyond the two-level table, or 2 without memory. */
API int ropewalk_turn(const void *words) {
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
    work.shares = shares_of(elements);
    deal(work.shares, turn_shares, &work);
    free(table);
    return DONE;
}
