/* One step of a llama model: rows of any number of sequences, newest tokens, drafts and prompts, through all layers.

   Nothing of a row's arithmetic depends on how many rows there are or which thread does it, so its bits are the same in
   every company. x86-64 with AVX2, FMA and F16C; compiled where it runs (`library.py`). */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "attention.h"

typedef struct { const float *attn_norm, *ffn_norm; Matrix qkv, out, gate_up, down; } Layer;
typedef struct {
    int32_t layers, width, ffn, heads, kv_heads, head_size, vocabulary;
    float eps;
    const Layer *layer;
    const float *norm, *turns; /* turns: [context, head size / 2] of (cos, sin) */
    Matrix embedding, head;
} Model;

/* A step is a list of phases, each some tasks that need nothing of each other. A ticket is (phase, task): whoever is free
   draws the next one, whoever ends a phase's last task opens the next phase. So nobody waits for a thread that has no
   task, which on a busy machine may not be running. */
enum { NORM, QKV, PLACE, ATTEND, MERGE, OUT, FFN_NORM, HIDDEN, DOWN, PHASES };
enum { QKV_GROUPS = 12, OUT_GROUPS = 9, HIDDEN_BLOCKS = 4, DOWN_GROUPS = 9, HEAD_GROUPS = 128 }; /* of a task of few rows */
enum { PANELS_FROM = 12, PART = 96 }; /* rows from which on panels pay, rows of one panel's task */

typedef struct { const Span *span; int first, rows; } Piece; /* neighbouring rows of a prompt that attend together */
typedef struct {
    const Model *m;
    const Cache *cache;
    const Span *spans;
    const int32_t *tables, *ids, *wanted;
    int count, rows, decoding, logit_rows, tiles, pieces, parts;
    const Span **of; /* a row's span */
    Piece *piece;
    float *x, *qkv, *partial, *logits;
    Rounded in, mid;
    _Atomic uint64_t ticket;
    _Atomic int done;
} Step;
typedef struct { Step *step; Panel panel; float *attention; } Worker; /* with what only its thread uses */

static int over(int count, int each) { return (count + each - 1) / each; }
static int least(int a, int b) { return a < b ? a : b; }
static int inner(const Model *m) { return m->heads * m->head_size; }
static int qkv_width(const Model *m) { return (m->heads + 2 * m->kv_heads) * m->head_size; }
static int shared(const Model *m) { return m->heads / m->kv_heads; }
static int end_of(const Step *s) { return s->m->layers * PHASES + (s->logit_rows ? 2 : 0); }

static int tasks_of(const Step *s, int phase) {
    const Model *m = s->m;
    const int many = s->rows >= PANELS_FROM;
    if (phase >= m->layers * PHASES) return phase % PHASES ? over(m->vocabulary / LANES, HEAD_GROUPS) : s->logit_rows;
    switch (phase % PHASES) {
    case QKV: return many ? s->parts * over(qkv_width(m), PANEL) : over(qkv_width(m) / LANES, QKV_GROUPS);
    case ATTEND: return (s->decoding * s->tiles + s->pieces) * m->kv_heads;
    case MERGE: return s->decoding * m->kv_heads;
    case OUT: return many ? s->parts * over(m->width, PANEL) : over(m->width / LANES, OUT_GROUPS);
    case HIDDEN: return many ? s->parts * (m->ffn / BLOCK) : over(m->ffn / BLOCK, HIDDEN_BLOCKS);
    case DOWN: return many ? s->parts * over(m->width, PANEL) : over(m->width / LANES, DOWN_GROUPS);
    default: return s->rows;
    }
}

static int position_of(const Step *s, int row) { return s->of[row]->position + row - s->of[row]->row; }

static Side side_of(const Step *s, int layer, int head, int form) {
    return (Side){s->cache, form, layer * s->cache->layer + head * s->cache->side};
}

/* Turn queries and keys of a row by its position and store keys and values. */
static void place(const Step *s, int layer, int r) {
    const Model *m = s->m;
    const int size = m->head_size, all = m->heads + 2 * m->kv_heads, position = position_of(s, r);
    const float scale = 1.0f / sqrtf((float)size), *turns = m->turns + (size_t)position * size;
    const int64_t at = place_of(s->cache, s->tables + s->of[r]->table, position, size);
    for (int h = 0; h < all; h++) {
        float *head = s->qkv + ((size_t)r * all + h) * size;
        if (h < m->heads + m->kv_heads) turn(head, turns, size, h < m->heads ? scale : 1.0f);
        if (h >= m->heads) store_numbers(side_of(s, layer, h - m->heads, s->cache->form), at, head, size);
    }
}

/* Both kinds of attention, in the form and shape that they are compiled for: `form`, `size` and `heads` may be constants. */
each_of void attend(const Step *s, int layer, int task, float *room, int form, int size, int heads) {
    const Model *m = s->m;
    const int decodes = s->decoding * s->tiles * m->kv_heads, prompt = task - decodes, all = m->heads + 2 * m->kv_heads;
    if (prompt >= 0) {
        const int head = prompt % m->kv_heads;
        const Piece *piece = s->piece + s->pieces - 1 - prompt / m->kv_heads; /* the longest first */
        const Span *span = piece->span;
        const float *q = s->qkv + ((size_t)piece->first * all + head * heads) * size;
        attend_prompt(side_of(s, layer, head, form), side_of(s, layer, head + m->kv_heads, form), size, heads, q, (size_t)all * size,
                      piece->rows, s->tables + span->table, span->position + piece->first - span->row, room,
                      row_of(s->mid, (size_t)piece->first * m->heads + head * heads, size), inner(m));
        return;
    }
    const int tile = task % s->tiles, head = task / s->tiles % m->kv_heads, r = task / s->tiles / m->kv_heads;
    const int first = tile * TILE, last = least(position_of(s, r) + 1, first + TILE);
    if (first < last)
        attend_tile(side_of(s, layer, head, form), side_of(s, layer, head + m->kv_heads, form), size, heads,
                    s->qkv + ((size_t)r * all + head * heads) * size, s->tables + s->of[r]->table, first, last,
                    s->partial + (size_t)task * heads * (size + 2));
}

static void attend_task(const Step *s, int layer, int task, float *room) {
    const int form = s->cache->form, size = s->m->head_size, heads = shared(s->m);
    if (form == HALF && size == 64 && heads == 3) attend(s, layer, task, room, HALF, 64, 3);
    else if (form == HALF) attend(s, layer, task, room, HALF, size, heads);
    else if (form == EIGHT) attend(s, layer, task, room, EIGHT, size, heads);
    else attend(s, layer, task, room, form, size, heads);
}

static void merge_task(const Step *s, int task) {
    const Model *m = s->m;
    const int size = m->head_size, heads = shared(m), stride = size + 2;
    const float *from = s->partial + (size_t)task * s->tiles * heads * stride;
    for (int h = 0; h < heads; h++)
        merge(from + h * stride, position_of(s, task / m->kv_heads) / TILE + 1, heads * stride, size,
              row_of(s->mid, (size_t)task * heads + h, size));
}

/* Outputs of whole groups, stored or added: [rows][all groups]. */
static void put(const float *from, int groups, float *to, int add) {
    for (int i = 0; i < groups * LANES; i += 8)
        _mm256_storeu_ps(to + i, add ? _mm256_add_ps(_mm256_loadu_ps(to + i), _mm256_loadu_ps(from + i)) : _mm256_loadu_ps(from + i));
}

each_of void few_task(const Matrix *w, int eight, int task, int each, int count, Rounded x, int rows, int width, float *to, int add) {
    for (int g = task * each; g < least((task + 1) * each, count); g++)
        for (int row = 0, some; row < rows; row += some) {
            __m256 out[FEW];
            some = some_rows(w, eight, g, row_of(x, row, width), rows - row, width, out);
            for (int r = 0; r < some; r++) put((const float *)&out[r], 1, to + ((size_t)(row + r) * count + g) * LANES, add);
        }
}

/* The rows of a panel's task: a part of all, a multiple of TALL but for the last. */
static void part_of(const Step *s, int task, int *first, int *last) {
    const int each = over(over(s->rows, s->parts), TALL) * TALL;
    *first = task % s->parts * each;
    *last = least(*first + each, s->rows);
}

static void product_task(const Worker *by, const Matrix *w, int each, int task, int count, Rounded x, int width, float *to, int add) {
    const Step *s = by->step;
    if (s->rows < PANELS_FROM) {
        few_task(w, 0, task, each, count, x, s->rows, width, to, add);
        return;
    }
    const int begin = task / s->parts * (PANEL / LANES);
    int groups[PANEL / LANES], first, last;
    for (int g = 0; g < PANEL / LANES; g++) groups[g] = begin + g < count ? begin + g : -1;
    part_of(s, task, &first, &last);
    unpack(w, groups, width, by->panel);
    for (int row = first, some; row < last; row += some) {
        float out[TALL][PANEL];
        some = panel_rows(by->panel, row_of(x, row, width), last - row, width, out);
        for (int r = 0; r < some; r++)
            put(out[r], least(PANEL / LANES, count - begin), to + ((size_t)(row + r) * count + begin) * LANES, add);
    }
}

/* silu(gate) * up of 32 hidden numbers, rounded for the next product. */
static void gated(const float *gate, const float *up, Rounded to) {
    float part[BLOCK];
    for (int i = 0; i < BLOCK; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i), one = _mm256_set1_ps(1.0f), e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), g));
        _mm256_storeu_ps(part + i, _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), _mm256_loadu_ps(up + i)));
    }
    round_block(part, to.q, to.scales);
}

static void hidden_few(const Step *s, const Matrix *w, int block) {
    const Model *m = s->m;
    for (int row = 0, some; row < s->rows; row += some) {
        float out[2][FEW][BLOCK];
        Rounded x = row_of(s->in, row, m->width);
        for (int i = 0; i < 2 * BLOCK / LANES; i++) {
            const int side = i / (BLOCK / LANES), group = i % (BLOCK / LANES);
            __m256 found[FEW];
            some = some_rows(w, 0, side * m->ffn / LANES + block * (BLOCK / LANES) + group, x, s->rows - row, m->width, found);
            for (int r = 0; r < some; r++) _mm256_storeu_ps(out[side][r] + group * LANES, found[r]);
        }
        for (int r = 0; r < some; r++) gated(out[0][r], out[1][r], row_of(s->mid, (size_t)(row + r) * (m->ffn / BLOCK) + block, BLOCK));
    }
}

static void hidden_task(const Worker *by, const Matrix *w, int task) {
    const Step *s = by->step;
    const Model *m = s->m;
    if (s->rows < PANELS_FROM) {
        for (int b = task * HIDDEN_BLOCKS; b < least((task + 1) * HIDDEN_BLOCKS, m->ffn / BLOCK); b++) hidden_few(s, w, b);
        return;
    }
    const int block = task / s->parts;
    int groups[PANEL / LANES], first, last;
    for (int g = 0; g < PANEL / LANES; g++)
        groups[g] = g / (BLOCK / LANES) * m->ffn / LANES + block * (BLOCK / LANES) + g % (BLOCK / LANES);
    part_of(s, task, &first, &last);
    unpack(w, groups, m->width, by->panel);
    for (int row = first, some; row < last; row += some) {
        float out[TALL][PANEL];
        some = panel_rows(by->panel, row_of(s->in, row, m->width), last - row, m->width, out);
        for (int r = 0; r < some; r++) gated(out[r], out[r] + BLOCK, row_of(s->mid, (size_t)(row + r) * (m->ffn / BLOCK) + block, BLOCK));
    }
}

static void run(const Worker *by, int phase, int task) {
    const Step *s = by->step;
    const Model *m = s->m;
    const int l = phase / PHASES, width = m->width;
    const Layer *layer = m->layer + l;
    const float *x = s->x + (size_t)task * width;
    if (l == m->layers) {
        if (phase % PHASES) few_task(&m->head, 1, task, HEAD_GROUPS, m->vocabulary / LANES, s->in, s->logit_rows, width, s->logits, 0);
        else norm_row(s->x + (size_t)s->wanted[task] * width, m->norm, m->eps, width, row_of(s->in, task, width));
        return;
    }
    switch (phase % PHASES) {
    case NORM: norm_row(x, layer->attn_norm, m->eps, width, row_of(s->in, task, width)); break;
    case QKV: product_task(by, &layer->qkv, QKV_GROUPS, task, qkv_width(m) / LANES, s->in, width, s->qkv, 0); break;
    case PLACE: place(s, l, task); break;
    case ATTEND: attend_task(s, l, task, by->attention); break;
    case MERGE: merge_task(s, task); break;
    case OUT: product_task(by, &layer->out, OUT_GROUPS, task, width / LANES, s->mid, inner(m), s->x, 1); break;
    case FFN_NORM: norm_row(x, layer->ffn_norm, m->eps, width, row_of(s->in, task, width)); break;
    case HIDDEN: hidden_task(by, &layer->gate_up, task); break;
    case DOWN: product_task(by, &layer->down, DOWN_GROUPS, task, width / LANES, s->mid, m->ffn, s->x, 1); break;
    }
}

static void *work(void *of) {
    Worker *by = of;
    Step *s = by->step;
    const int end = end_of(s);
    for (int idle = 0;; ) {
        uint64_t ticket = atomic_load(&s->ticket);
        int phase = (int)(ticket >> 32);
        if (phase == end) return NULL;
        int count = tasks_of(s, phase);
        if ((int)(uint32_t)ticket >= count || !atomic_compare_exchange_weak(&s->ticket, &ticket, ticket + 1)) {
            if (++idle % 16384 == 0) sched_yield();
            _mm_pause();
            continue;
        }
        idle = 0;
        run(by, phase, (int)(uint32_t)ticket);
        if (atomic_fetch_add(&s->done, 1) + 1 == count) {
            do phase++; while (phase < end && !tasks_of(s, phase));
            atomic_store(&s->done, 0);
            atomic_store(&s->ticket, (uint64_t)phase << 32);
        }
    }
}

/* Which row belongs to whom, which rows of prompts attend together, and the longest row that decodes. */
static void divide(Step *s) {
    const int most = QUERIES / shared(s->m);
    for (int i = 0; i < s->count; i++) {
        const Span *span = s->spans + i;
        for (int r = 0; r < span->count; r++) s->of[span->row + r] = span;
        const int tiles = over(span->position + span->count, TILE);
        if (span->decodes && tiles > s->tiles) s->tiles = tiles;
        if (span->decodes) s->decoding += span->count;
        for (int r = 0; r < span->count && !span->decodes; r += most)
            s->piece[s->pieces++] = (Piece){span, span->row + r, least(most, span->count - r)};
    }
}

static void *take(char **at, size_t bytes) {
    void *taken = *at;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* Lays what a step and its workers need from `base` on; where it ends. */
static char *lay(Step *s, Worker *workers, int threads, char *base) {
    const Model *m = s->m;
    const int wide = m->ffn > inner(m) ? m->ffn : inner(m), most = wide > m->width ? wide : m->width;
    const size_t rows = s->rows, narrow = rows * m->width, mid = rows * wide;
    char *at = base;
    s->of = take(&at, rows * sizeof *s->of);
    s->piece = take(&at, rows * sizeof *s->piece);
    s->x = take(&at, narrow * sizeof(float));
    s->qkv = take(&at, rows * qkv_width(m) * sizeof(float));
    s->in = (Rounded){take(&at, narrow * sizeof(int16_t)), take(&at, narrow / BLOCK * 2 * sizeof(float))};
    s->mid = (Rounded){take(&at, mid * sizeof(int16_t)), take(&at, mid / BLOCK * 2 * sizeof(float))};
    for (int t = 0; t < threads; t++) {
        workers[t].step = s;
        workers[t].panel = (Panel){take(&at, (size_t)most * PANEL * sizeof(int16_t)), take(&at, (size_t)most / BLOCK * 2 * PANEL * sizeof(float))};
        workers[t].attention = take(&at, prompt_room(m->head_size) * sizeof(float));
    }
    return at;
}

/* Spans that decode come before the others, their rows first. Stores each row's keys and values at its position and gives
   the logits [wanted, vocabulary] of the rows `wanted`, in order. 0, or 1 without memory. */
int step(const Model *m, const Cache *cache, int threads, int count, const Span *spans, const int32_t *tables, int rows,
         const int32_t *ids, int logit_rows, const int32_t *wanted, float *logits) {
    enum { MOST_THREADS = 64 };
    Worker workers[MOST_THREADS];
    pthread_t helpers[MOST_THREADS];
    Step s = {.m = m, .cache = cache, .spans = spans, .tables = tables, .ids = ids, .wanted = wanted, .count = count, .rows = rows,
              .logit_rows = logit_rows, .parts = over(rows, PART), .logits = logits};
    threads = least(threads, MOST_THREADS);
    char *memory = aligned_alloc(64, (size_t)lay(&s, workers, threads, NULL) + 64);
    if (!memory) return 1;
    lay(&s, workers, threads, memory);
    divide(&s);
    s.partial = malloc(((size_t)s.decoding * s.tiles * m->heads * (m->head_size + 2) + 1) * sizeof(float));
    for (int r = 0; r < rows; r++) dense_row(&m->embedding, ids[r], m->width, s.x + (size_t)r * m->width);
    int started = 1, failed = !s.partial;
    while (!failed && started < threads && !pthread_create(&helpers[started], NULL, work, &workers[started])) started++;
    if (!failed) work(&workers[0]);
    while (--started) pthread_join(helpers[started], NULL);
    free(s.partial);
    free(memory);
    return failed;
}
