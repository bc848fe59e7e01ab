/* One decode step: some rows, each the newest token (or a draft) of a sequence, through all layers of a llama model.

   Weights stay as the file has them: Q4_1 blocks for the layers, Q8_0 for the head. Activations are rounded to 16 bits
   per 32 of them, so products are whole-number sums that lose no more than float32 does. Nothing of a row's arithmetic
   depends on how many rows there are or which thread does it, so its bits are the same in every company.

   x86-64 with AVX2, FMA and F16C; compiled where it runs (`native.py`). */

#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 32  /* weights that share a scale */
#define LANES 8   /* output rows that are computed together, one per lane */
#define TILE 128  /* keys of one attention task: a fixed grid, so that sums do not depend on the threads */
#define MOST_SHARED 16 /* query heads of one key head */
#define MOST 8    /* activation rows that share one unpacking of weights */
/* Keeps the compiler from summing in another order, which would need more registers than there are. */
#define keep(vector) __asm__("" : "+x"(vector))
#define each_of static inline __attribute__((always_inline))

typedef struct { const uint8_t *words; const uint16_t *scales; } Matrix;
typedef struct { const float *attn_norm, *ffn_norm; Matrix qkv, out, gate_up, down; } Layer;
typedef struct {
    int32_t layers, width, ffn, heads, kv_heads, head_size, vocabulary;
    float eps;
    const Layer *layer;
    const float *norm, *turns; /* turns: [context, head size / 2] of (cos, sin) */
    Matrix head;
} Model;
typedef struct {
    int32_t block_size, form; /* form of a number: 0 float16, 1 bfloat16, 2 float32 */
    int64_t side;             /* numbers between one head's pool and the next's */
    uint8_t *const *layer;    /* each [2 * kv heads, blocks, block size, head size] */
} Cache;
typedef struct { int16_t *q; float *scales; } Rounded; /* rows of 16-bit numbers; scale and sum of every 32 */

each_of __m256 load_half(const uint16_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }

each_of float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

each_of float max8(__m256 v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* e^x to 1e-7: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
each_of __m256 exp8(__m256 x) {
    x = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(88.0f)), _mm256_set1_ps(-87.0f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.0f / 720);
    const float rest[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    for (int i = 0; i < 6; i++) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(rest[i]));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

/* 32 floats to 16 bits each; what they are worth (scale) and what they add up to. */
static void round_block(const float *x, int16_t *q, float *scale) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < BLOCK; i += 8) most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    float worth = max8(most) / 32767.0f;
    __m256 inverse = _mm256_set1_ps(worth > 0 ? 1.0f / worth : 0.0f);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < BLOCK; i += 16) {
        __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
        __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), inverse));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
        _mm256_storeu_si256((__m256i *)(q + i), _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8));
    }
    scale[0] = worth;
    scale[1] = worth * sum8(_mm256_cvtepi32_ps(sum));
}

static void norm_row(const float *x, const float *weight, float eps, int width, int row, Rounded to) {
    __m256 squares = _mm256_setzero_ps();
    for (int i = 0; i < width; i += 8) squares = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), squares);
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum8(squares) / (float)width + eps));
    for (int i = 0; i < width; i += BLOCK) {
        float part[BLOCK];
        for (int j = 0; j < BLOCK; j += 8) {
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i + j), scale);
            _mm256_storeu_ps(part + j, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i + j)));
        }
        round_block(part, to.q + (size_t)row * width + i, to.scales + ((size_t)row * width + i) / BLOCK * 2);
    }
}

/* Eight outputs of `rows` rows. Words lie so that a 32-bit lane holds two neighbours of one output row: Q4 in 4 slices
   of 4 bits (8 inputs in 32 bytes), Q8 as bytes (2 inputs in 16 bytes). */
each_of void product(const Matrix *w, int eight, int group, Rounded x, int row, int rows, int width, __m256 *out) {
    const __m256i low = _mm256_set1_epi16(15);
    const int blocks = width / BLOCK;
    const uint8_t *words = w->words + (size_t)group * width * (eight ? 8 : 4);
    const uint16_t *scales = w->scales + (size_t)group * blocks * LANES * (eight ? 1 : 2);
    for (int r = 0; r < rows; r++) out[r] = _mm256_setzero_ps();
    for (int b = 0; b < blocks; b++) {
        __m256i sums[MOST];
        for (int r = 0; r < rows; r++) sums[r] = _mm256_setzero_si256();
        for (int part = 0; part < 4; part++) {
            __m256i v = eight ? low : _mm256_loadu_si256((const __m256i *)words), slice;
            const int16_t *q = x.q + (size_t)row * width + b * BLOCK + part * 8;
            for (int s = 0; s < 4; s++) {
                if (eight) slice = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(words + 16 * s)));
                else slice = s < 3 ? _mm256_and_si256(_mm256_srli_epi16(v, 4 * s), low) : _mm256_srli_epi16(v, 12);
                for (int r = 0; r < rows; r++) {
                    const void *pair = q + (size_t)r * width + 2 * s;
                    __m256i both = _mm256_castps_si256(_mm256_broadcast_ss(pair));
                    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(slice, both));
                    keep(sums[r]);
                }
            }
            words += eight ? 64 : 32;
        }
        __m256 d = load_half(scales), m = eight ? _mm256_setzero_ps() : load_half(scales + LANES);
        scales += eight ? LANES : 2 * LANES;
        for (int r = 0; r < rows; r++) {
            const float *scale = x.scales + ((size_t)(row + r) * blocks + b) * 2;
            out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), _mm256_mul_ps(d, _mm256_set1_ps(scale[0])), out[r]);
            if (!eight) out[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(scale[1]), out[r]);
        }
    }
}

each_of int rows_of(const Matrix *w, int eight, int group, Rounded x, int row, int rows, int width, __m256 *out) {
    int left = rows - row, count = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (count == 8) product(w, eight, group, x, row, 8, width, out);
    else if (count == 4) product(w, eight, group, x, row, 4, width, out);
    else if (count == 2) product(w, eight, group, x, row, 2, width, out);
    else product(w, eight, group, x, row, 1, width, out);
    return count;
}

/* Eight outputs of all rows, stored or added. */
static void outputs(const Matrix *w, int eight, int group, Rounded x, int rows, int width, float *to, size_t stride, int add) {
    __m256 out[MOST];
    for (int row = 0, count; row < rows; row += count) {
        count = eight ? rows_of(w, 1, group, x, row, rows, width, out) : rows_of(w, 0, group, x, row, rows, width, out);
        for (int r = 0; r < count; r++) {
            float *at = to + (row + r) * stride + (size_t)group * LANES;
            _mm256_storeu_ps(at, add ? _mm256_add_ps(_mm256_loadu_ps(at), out[r]) : out[r]);
        }
    }
}

/* Gate and up for 32 hidden numbers of all rows, and what comes of them, rounded for the next product. */
static void hidden(const Model *m, const Layer *layer, int block, Rounded x, int rows, Rounded to) {
    __m256 gate[MOST], up[MOST];
    for (int row = 0, count; row < rows; row += count) {
        float part[MOST][BLOCK];
        for (int i = 0; i < BLOCK / LANES; i++) {
            int group = block * (BLOCK / LANES) + i;
            count = rows_of(&layer->gate_up, 0, group, x, row, rows, m->width, gate);
            rows_of(&layer->gate_up, 0, group + m->ffn / LANES, x, row, rows, m->width, up);
            for (int r = 0; r < count; r++) {
                __m256 one = _mm256_set1_ps(1.0f), e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), gate[r]));
                _mm256_storeu_ps(part[r] + i * LANES, _mm256_mul_ps(_mm256_div_ps(gate[r], _mm256_add_ps(one, e)), up[r]));
            }
        }
        for (int r = 0; r < count; r++) {
            size_t at = (size_t)(row + r) * m->ffn + block * BLOCK;
            round_block(part[r], to.q + at, to.scales + at / BLOCK * 2);
        }
    }
}

each_of __m256 load_number(const uint8_t *pool, int64_t at, int form) {
    if (form == 0) return load_half((const uint16_t *)pool + at);
    if (form == 2) return _mm256_loadu_ps((const float *)pool + at);
    __m128i v = _mm_loadu_si128((const __m128i *)((const uint16_t *)pool + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

static void store_numbers(uint8_t *pool, int64_t at, int form, const float *x, int count) {
    for (int i = 0; i < count; i += 8, at += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        if (form == 2) {
            _mm256_storeu_ps((float *)pool + at, v);
        } else if (form == 0) {
            _mm_storeu_si128((__m128i *)((uint16_t *)pool + at), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        } else {
            uint32_t bits[8];
            _mm256_storeu_si256((__m256i *)bits, _mm256_castps_si256(v));
            for (int j = 0; j < 8; j++) ((uint16_t *)pool)[at + j] = (uint16_t)((bits[j] + 0x7fff + (bits[j] >> 16 & 1)) >> 16);
        }
    }
}

/* Turn a head by its position (neighbours are a pair) and scale it. */
static void turn(float *head, const float *turns, int size, float scale) {
    for (int i = 0; i < size; i += 8) {
        __m256 x = _mm256_loadu_ps(head + i), t = _mm256_loadu_ps(turns + i);
        __m256 other = _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), _mm256_movehdup_ps(t));
        x = _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(t), other);
        _mm256_storeu_ps(head + i, _mm256_mul_ps(x, _mm256_set1_ps(scale)));
    }
}

/* Eight sums at once: the sum of each vector's lanes. */
each_of __m256 sums8(const __m256 *v) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Keys [first, last) of one row and key head: for each query head the weighted values, their sum of weights, the largest
   score. A block holds a multiple of 8 keys; what lies behind `last` in the last eight counts nothing. */
each_of void attend(const Cache *cache, const uint8_t *keys, const uint8_t *values, int form, int size, int shared, const float *q,
                    const int32_t *table, int first, int last, float *out) {
    const int block = cache->block_size, stride = size + 2, count = last - first;
    float scores[MOST_SHARED][TILE], top[MOST_SHARED];
    for (int at = 0; at < count; at += 8) {
        int64_t row = ((int64_t)table[(first + at) / block] * block + (first + at) % block) * size;
        __m256 sums[MOST_SHARED][8];
        for (int key = 0; key < 8; key++, row += size) {
            __m256 sum[MOST_SHARED];
            for (int h = 0; h < shared; h++) sum[h] = _mm256_setzero_ps();
            for (int i = 0; i < size; i += 8) {
                __m256 k = load_number(keys, row + i, form);
                for (int h = 0; h < shared; h++) sum[h] = _mm256_fmadd_ps(k, _mm256_loadu_ps(q + h * size + i), sum[h]);
            }
            for (int h = 0; h < shared; h++) sums[h][key] = sum[h];
        }
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256 seen = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - at), index));
        for (int h = 0; h < shared; h++)
            _mm256_storeu_ps(scores[h] + at, _mm256_blendv_ps(_mm256_set1_ps(-1e30f), sums8(sums[h]), seen));
    }
    for (int h = 0; h < shared; h++) {
        __m256 most = _mm256_set1_ps(-1e30f), total = _mm256_setzero_ps();
        for (int at = 0; at < count; at += 8) most = _mm256_max_ps(most, _mm256_loadu_ps(scores[h] + at));
        top[h] = max8(most);
        for (int at = 0; at < count; at += 8) {
            __m256 score = _mm256_loadu_ps(scores[h] + at), seen = _mm256_cmp_ps(score, _mm256_set1_ps(-1e29f), _CMP_GT_OQ);
            __m256 e = _mm256_and_ps(exp8(_mm256_sub_ps(score, _mm256_set1_ps(top[h]))), seen);
            _mm256_storeu_ps(scores[h] + at, e);
            total = _mm256_add_ps(total, e);
        }
        out[h * stride + size] = sum8(total);
        out[h * stride + size + 1] = top[h];
    }
    for (int i = 0; i < size; i += 32) {
        __m256 sums[MOST_SHARED][4];
        for (int h = 0; h < shared; h++) for (int j = 0; j < 4; j++) sums[h][j] = _mm256_setzero_ps();
        for (int at = 0; at < count; at += 8) {
            int64_t row = ((int64_t)table[(first + at) / block] * block + (first + at) % block) * size + i;
            for (int key = at; key < at + 8; key++, row += size) {
                __m256 v[4];
                for (int j = 0; j < 4; j++) v[j] = load_number(values, row + 8 * j, form);
                for (int h = 0; h < shared; h++) {
                    __m256 weight = _mm256_broadcast_ss(scores[h] + key);
                    for (int j = 0; j < 4; j++) sums[h][j] = _mm256_fmadd_ps(weight, v[j], sums[h][j]);
                }
            }
        }
        for (int h = 0; h < shared; h++) for (int j = 0; j < 4; j++) _mm256_storeu_ps(out + h * stride + i + 8 * j, sums[h][j]);
    }
}

/* The tiles of one query head into one row of values, rounded for the next product. */
static void merge(const float *tiles, int count, size_t stride, int size, int16_t *q, float *scales) {
    float top = -INFINITY, total = 0, sums[BLOCK];
    for (int t = 0; t < count; t++) top = fmaxf(top, tiles[t * stride + size + 1]);
    for (int t = 0; t < count; t++) total += tiles[t * stride + size] * expf(tiles[t * stride + size + 1] - top);
    for (int i = 0; i < size; i += BLOCK) {
        memset(sums, 0, sizeof sums);
        for (int t = 0; t < count; t++) {
            float weight = expf(tiles[t * stride + size + 1] - top) / total;
            for (int j = 0; j < BLOCK; j++) sums[j] = fmaf(tiles[t * stride + i + j], weight, sums[j]);
        }
        round_block(sums, q + i, scales + i / BLOCK * 2);
    }
}

/* A step is a list of phases, each some tasks that need nothing of each other. A ticket is (phase, task): whoever is free
   draws the next one, whoever ends a phase's last task opens the next phase. So nobody waits for a thread that has no
   task, which on a busy machine may not be running. */
enum { NORM, QKV, PLACE, ATTEND, MERGE, OUT, FFN_NORM, HIDDEN, DOWN, PHASES };
enum { QKV_GROUPS = 12, OUT_GROUPS = 9, HIDDEN_BLOCKS = 4, DOWN_GROUPS = 9, HEAD_GROUPS = 128 }; /* of a task */

typedef struct {
    const Model *m;
    const Cache *cache;
    int rows, table, tiles;
    const int32_t *positions, *tables;
    float *x, *qkv, *partial, *logits;
    Rounded in, mid;
    _Atomic uint64_t ticket;
    _Atomic int done;
} Step;

static int over(int count, int each) { return (count + each - 1) / each; }

static int tasks_of(const Step *s, int phase) {
    const Model *m = s->m;
    const int all = m->heads + 2 * m->kv_heads;
    if (phase == m->layers * PHASES + 1) return over(m->vocabulary / LANES, HEAD_GROUPS);
    switch (phase % PHASES) {
    case QKV: return over(all * m->head_size / LANES, QKV_GROUPS);
    case ATTEND: return s->rows * m->kv_heads * s->tiles;
    case MERGE: return s->rows * m->kv_heads;
    case OUT: return over(m->width / LANES, OUT_GROUPS);
    case HIDDEN: return over(m->ffn / BLOCK, HIDDEN_BLOCKS);
    case DOWN: return over(m->width / LANES, DOWN_GROUPS);
    default: return s->rows;
    }
}

/* Turn queries and keys of a row by its position and store keys and values. */
static void place(const Step *s, uint8_t *pool, int r) {
    const Model *m = s->m;
    const int size = m->head_size, all = m->heads + 2 * m->kv_heads, position = s->positions[r], block = s->cache->block_size;
    const float scale = 1.0f / sqrtf((float)size), *turns = m->turns + (size_t)position * size;
    int64_t at = ((int64_t)s->tables[(size_t)r * s->table + position / block] * block + position % block) * size;
    for (int h = 0; h < all; h++) {
        float *head = s->qkv + ((size_t)r * all + h) * size;
        if (h < m->heads + m->kv_heads) turn(head, turns, size, h < m->heads ? scale : 1.0f);
        if (h >= m->heads) store_numbers(pool, (h - m->heads) * s->cache->side + at, s->cache->form, head, size);
    }
}

static void attend_task(const Step *s, const uint8_t *pool, int task) {
    const Model *m = s->m;
    const int shared = m->heads / m->kv_heads, all = m->heads + 2 * m->kv_heads;
    const int tile = task % s->tiles, head = task / s->tiles % m->kv_heads, r = task / s->tiles / m->kv_heads;
    const int first = tile * TILE, known = s->positions[r] + 1, last = known < first + TILE ? known : first + TILE;
    const float *q = s->qkv + ((size_t)r * all + head * shared) * m->head_size;
    const int32_t *table = s->tables + (size_t)r * s->table;
    float *to = s->partial + (size_t)task * shared * (m->head_size + 2);
    if (first >= last) return;
    const int form = s->cache->form, bytes = form == 2 ? 4 : 2;
    const uint8_t *keys = pool + head * s->cache->side * bytes, *values = keys + m->kv_heads * s->cache->side * bytes;
    if (form == 0 && m->head_size == 64 && shared == 3) attend(s->cache, keys, values, 0, 64, 3, q, table, first, last, to);
    else attend(s->cache, keys, values, form, m->head_size, shared, q, table, first, last, to);
}

static void merge_task(const Step *s, int task) {
    const Model *m = s->m;
    const int size = m->head_size, shared = m->heads / m->kv_heads, stride = size + 2;
    const float *from = s->partial + (size_t)task * s->tiles * shared * stride;
    for (int h = 0; h < shared; h++) {
        size_t at = ((size_t)task * shared + h) * size;
        merge(from + h * stride, s->positions[task / m->kv_heads] / TILE + 1, shared * stride, size, s->mid.q + at, s->mid.scales + at / BLOCK * 2);
    }
}

static void groups(const Step *s, const Matrix *w, int eight, int task, int each, int count, Rounded x, int width, float *to, int add) {
    for (int g = task * each; g < (task + 1) * each && g < count; g++)
        outputs(w, eight, g, x, s->rows, width, to, (size_t)count * LANES, add);
}

static void run(const Step *s, int phase, int task) {
    const Model *m = s->m;
    const int l = phase / PHASES, width = m->width, inner = m->heads * m->head_size;
    const Layer *layer = m->layer + l;
    if (l == m->layers) {
        if (phase % PHASES) groups(s, &m->head, 1, task, HEAD_GROUPS, m->vocabulary / LANES, s->in, width, s->logits, 0);
        else norm_row(s->x + (size_t)task * width, m->norm, m->eps, width, task, s->in);
        return;
    }
    switch (phase % PHASES) {
    case NORM: norm_row(s->x + (size_t)task * width, layer->attn_norm, m->eps, width, task, s->in); break;
    case QKV: groups(s, &layer->qkv, 0, task, QKV_GROUPS, (inner + 2 * m->kv_heads * m->head_size) / LANES, s->in, width, s->qkv, 0); break;
    case PLACE: place(s, s->cache->layer[l], task); break;
    case ATTEND: attend_task(s, s->cache->layer[l], task); break;
    case MERGE: merge_task(s, task); break;
    case OUT: groups(s, &layer->out, 0, task, OUT_GROUPS, width / LANES, s->mid, inner, s->x, 1); break;
    case FFN_NORM: norm_row(s->x + (size_t)task * width, layer->ffn_norm, m->eps, width, task, s->in); break;
    case HIDDEN:
        for (int b = task * HIDDEN_BLOCKS; b < (task + 1) * HIDDEN_BLOCKS && b < m->ffn / BLOCK; b++) hidden(m, layer, b, s->in, s->rows, s->mid);
        break;
    case DOWN: groups(s, &layer->down, 0, task, DOWN_GROUPS, width / LANES, s->mid, m->ffn, s->x, 1); break;
    }
}

static void *work(void *of) {
    Step *s = of;
    const uint64_t end = (uint64_t)s->m->layers * PHASES + 2;
    for (int idle = 0;; ) {
        uint64_t ticket = atomic_load(&s->ticket);
        if (ticket >> 32 == end) return NULL;
        int count = tasks_of(s, (int)(ticket >> 32));
        if ((int)(uint32_t)ticket >= count || !atomic_compare_exchange_weak(&s->ticket, &ticket, ticket + 1)) {
            if (++idle % 4096 == 0) sched_yield();
            _mm_pause();
            continue;
        }
        idle = 0;
        run(s, (int)(ticket >> 32), (int)(uint32_t)ticket);
        if (atomic_fetch_add(&s->done, 1) + 1 == count) {
            atomic_store(&s->done, 0);
            atomic_store(&s->ticket, ((ticket >> 32) + 1) << 32);
        }
    }
}

/* Layers from `first` on (all of them: only the head). x: [rows, width], what goes in, spoiled. tables: [rows, table], the
   blocks of each row's sequence. Stores each row's keys and values at its position and gives its logits [rows, vocabulary].
   0, or 1 without memory. */
int step(const Model *m, const Cache *cache, int threads, int first, int rows, float *x, const int32_t *positions,
         const int32_t *tables, int table, float *logits) {
    const int inner = m->heads * m->head_size, wide = m->ffn > inner ? m->ffn : inner;
    int most = 0;
    for (int r = 0; r < rows; r++) most = positions[r] > most ? positions[r] : most;
    const int tiles = most / TILE + 1;
    const size_t qkv = (size_t)rows * (inner + 2 * m->kv_heads * m->head_size);
    const size_t partial = (size_t)rows * tiles * m->heads * (m->head_size + 2), narrow = (size_t)rows * m->width, mid = (size_t)rows * wide;
    float *memory = malloc((qkv + partial + (narrow + mid) / BLOCK * 2) * sizeof(float) + (narrow + mid) * sizeof(int16_t));
    if (!memory) return 1;
    Step s = {.m = m, .cache = cache, .rows = rows, .table = table, .tiles = tiles, .positions = positions, .tables = tables,
              .x = x, .qkv = memory, .partial = memory + qkv, .logits = logits, .ticket = (uint64_t)first * PHASES << 32};
    s.in.scales = s.partial + partial;
    s.mid.scales = s.in.scales + narrow / BLOCK * 2;
    s.in.q = (int16_t *)(s.mid.scales + mid / BLOCK * 2);
    s.mid.q = s.in.q + narrow;
    pthread_t helpers[64];
    int started = 0;
    while (started < threads - 1 && started < 64 && !pthread_create(&helpers[started], NULL, work, &s)) started++;
    work(&s);
    while (started) pthread_join(helpers[--started], NULL);
    free(memory);
    return 0;
}
