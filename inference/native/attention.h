/* Attention over paged keys and values, in two ways that differ in shape. A row that decodes goes alone over tiles of TILE
   keys, and the tiles are merged; rows of a prompt go together, one query a lane, over tiles of KEYS keys, and what was
   weighed before shrinks when a larger score comes. Both grids of keys begin at 0, and what is masked adds exactly nothing:
   a row's bits depend on its position and on what it sees. */
#pragma once

#include "product.h"

#define TILE 128
#define MOST_SHARED 16 /* query heads of one key head */
#define QUERIES 96     /* of a prompt's task: rows times the query heads of one key head */
#define KEYS 64
#define ABREAST (3 * WIDE) /* queries of one `outer`; they divide QUERIES */
#if WIDE == 16
#define OUTER 8            /* its rows; they divide KEYS and a head's size */
#else
#define OUTER 4
#endif
#define SCALED 16 /* neighbours that share a scale in the int8 form */
static const float LEAST = -1e30f;

enum { HALF, BRAIN, SINGLE, EIGHT }; /* forms of a number: float16, bfloat16, float32, int8 with a float16 scale */
typedef struct {
    int32_t block_size, form;
    int64_t side, layer; /* numbers between one head's pool and the next's, between one layer and the next */
    uint8_t *rows;       /* [layers, 2 * kv heads, blocks, block size, head size], keys before values */
    uint16_t *scales;    /* the same by SCALED, if the form has them */
} Cache;
typedef struct { int32_t row, count, position, decodes, table; } Span; /* `table`: where its blocks begin in the tables */
typedef struct { const Cache *cache; int form; int64_t at; } Side;       /* keys or values of a head in a layer */

each_of __m256 load_numbers(Side side, int64_t at) {
    const uint8_t *pool = side.cache->rows;
    at += side.at;
    if (side.form == HALF) return load_half((const uint16_t *)pool + at);
    if (side.form == SINGLE) return _mm256_loadu_ps((const float *)pool + at);
    if (side.form == BRAIN) {
        __m128i v = _mm_loadu_si128((const __m128i *)((const uint16_t *)pool + at));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    }
    __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(pool + at))));
    return _mm256_mul_ps(v, _mm256_set1_ps(half(side.cache->scales + at / SCALED)));
}

/* A head's numbers at `at`, rounded to the form as torch rounds them. */
static void store_numbers(Side side, int64_t at, const float *x, int count) {
    at += side.at;
    for (int i = 0; i < count; i += 8, at += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        if (side.form == SINGLE) {
            _mm256_storeu_ps((float *)side.cache->rows + at, v);
        } else if (side.form == HALF) {
            _mm_storeu_si128((__m128i *)((uint16_t *)side.cache->rows + at), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
        } else if (side.form == BRAIN) {
            uint32_t bits[8];
            _mm256_storeu_si256((__m256i *)bits, _mm256_castps_si256(v));
            for (int j = 0; j < 8; j++)
                ((uint16_t *)side.cache->rows)[at + j] = (uint16_t)((bits[j] + 0x7fff + (bits[j] >> 16 & 1)) >> 16);
        } else {
            uint16_t *scale = side.cache->scales + at / SCALED;
            if (i % SCALED == 0) *scale = _cvtss_sh(fmaxf(most_of(x + i, SCALED) / 127.0f, 6e-5f), _MM_FROUND_TO_NEAREST_INT);
            for (int j = 0; j < 8; j++)
                ((int8_t *)side.cache->rows)[at + j] = (int8_t)fminf(fmaxf(rintf(x[i + j] / half(scale)), -127.0f), 127.0f);
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

/* Where a position's numbers begin in a side. */
each_of int64_t place_of(const Cache *cache, const int32_t *table, int position, int size) {
    return ((int64_t)table[position / cache->block_size] * cache->block_size + position % cache->block_size) * size;
}

/* Eight sums at once: the sum of each vector's lanes. */
each_of __m256 sums8(const __m256 *v) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Keys [first, last) of one decoding row and key head: for each query head the weighted values, their sum of weights, the
   largest score. A block holds a multiple of 8 keys; what lies behind `last` in the last eight counts nothing. */
each_of void attend_tile(Side keys, Side values, int size, int shared, const float *q, const int32_t *table, int first, int last,
                         float *out) {
    const int stride = size + 2, count = last - first;
    float scores[MOST_SHARED][TILE], top[MOST_SHARED];
    for (int at = 0; at < count; at += 8) {
        int64_t row = place_of(keys.cache, table, first + at, size);
        __m256 sums[MOST_SHARED][8];
        for (int key = 0; key < 8; key++, row += size) {
            __m256 sum[MOST_SHARED];
            for (int h = 0; h < shared; h++) sum[h] = _mm256_setzero_ps();
            for (int i = 0; i < size; i += 8) {
                __m256 k = load_numbers(keys, row + i);
                for (int h = 0; h < shared; h++) sum[h] = _mm256_fmadd_ps(k, _mm256_loadu_ps(q + h * size + i), sum[h]);
            }
            for (int h = 0; h < shared; h++) sums[h][key] = sum[h];
        }
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256 seen = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - at), index));
        for (int h = 0; h < shared; h++)
            _mm256_storeu_ps(scores[h] + at, _mm256_blendv_ps(_mm256_set1_ps(LEAST), sums8(sums[h]), seen));
    }
    for (int h = 0; h < shared; h++) {
        __m256 most = _mm256_set1_ps(LEAST), total = _mm256_setzero_ps();
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
            int64_t row = place_of(values.cache, table, first + at, size) + i;
            for (int key = at; key < at + 8; key++, row += size) {
                __m256 v[4];
                for (int j = 0; j < 4; j++) v[j] = load_numbers(values, row + 8 * j);
                for (int h = 0; h < shared; h++) {
                    __m256 weight = _mm256_broadcast_ss(scores[h] + key);
                    for (int j = 0; j < 4; j++) sums[h][j] = _mm256_fmadd_ps(weight, v[j], sums[h][j]);
                }
            }
        }
        for (int h = 0; h < shared; h++) for (int j = 0; j < 4; j++) _mm256_storeu_ps(out + h * stride + i + 8 * j, sums[h][j]);
    }
}

/* The tiles of one query head of a decoding row into its values, rounded for the next product. */
static void merge(const float *tiles, int count, size_t stride, int size, Rounded to) {
    float top = -INFINITY, total = 0, sums[BLOCK];
    for (int t = 0; t < count; t++) top = fmaxf(top, tiles[t * stride + size + 1]);
    for (int t = 0; t < count; t++) total += tiles[t * stride + size] * expf(tiles[t * stride + size + 1] - top);
    for (int i = 0; i < size; i += BLOCK) {
        memset(sums, 0, sizeof sums);
        for (int t = 0; t < count; t++) {
            float weight = expf(tiles[t * stride + size + 1] - top) / total;
            for (int j = 0; j < BLOCK; j++) sums[j] = fmaf(tiles[t * stride + i + j], weight, sums[j]);
        }
        round_block(sums, to.q + i, to.scales + i / BLOCK * 2);
    }
}

/* to[row][query] (+)= sum over depth of a[row, depth] * b[depth][query], for OUTER rows and ABREAST queries. */
each_of void outer(const float *a, size_t by_row, size_t by_depth, const float *b, int depth, float *to, int fresh) {
    Wide sums[OUTER][3];
    for (int r = 0; r < OUTER; r++)
        for (int c = 0; c < 3; c++) sums[r][c] = fresh ? wide(setzero_ps)() : wide(loadu_ps)(to + r * QUERIES + c * WIDE);
    for (int d = 0; d < depth; d++) {
        Wide v[3];
        for (int c = 0; c < 3; c++) v[c] = wide(loadu_ps)(b + d * QUERIES + c * WIDE);
        for (int r = 0; r < OUTER; r++) {
            Wide x = wide(set1_ps)(a[r * by_row + d * by_depth]);
            for (int c = 0; c < 3; c++) sums[r][c] = wide(fmadd_ps)(x, v[c], sums[r][c]);
        }
    }
    for (int r = 0; r < OUTER; r++) for (int c = 0; c < 3; c++) wide(storeu_ps)(to + r * QUERIES + c * WIDE, sums[r][c]);
}

/* Scores [count][QUERIES] to weights: `seen` says how many keys from this tile's first on a query sees. What `out` [size]
   and `total` held shrinks to the largest score so far. One vector of queries. */
each_of void weigh(float *scores, int count, const int32_t *seen, float *top, float *total, float *out, int size) {
    const Ints known = (Ints)wide(loadu_ps)((const float *)seen);
    const Wide least = wide(set1_ps)(LEAST), before = wide(loadu_ps)(top);
    Wide most = before;
    for (int k = 0; k < count; k++) {
        Ints counts = known > (Ints)wide(set1_epi32)(k);
        Wide score = wide(loadu_ps)(scores + k * QUERIES);
        most = wide(max_ps)(most, (Wide)(((Ints)score & counts) | ((Ints)least & ~counts)));
    }
    Wide shrink = exp_wide(wide(sub_ps)(before, most)), sum = wide(mul_ps)(wide(loadu_ps)(total), shrink);
    for (int k = 0; k < count; k++) {
        Ints counts = known > (Ints)wide(set1_epi32)(k);
        Wide e = (Wide)((Ints)exp_wide(wide(sub_ps)(wide(loadu_ps)(scores + k * QUERIES), most)) & counts);
        wide(storeu_ps)(scores + k * QUERIES, e);
        sum = wide(add_ps)(sum, e);
    }
    for (int d = 0; d < size; d++) wide(storeu_ps)(out + d * QUERIES, wide(mul_ps)(wide(loadu_ps)(out + d * QUERIES), shrink));
    wide(storeu_ps)(top, most);
    wide(storeu_ps)(total, sum);
}

/* `count` keys or values from `first` on as floats; up to a multiple of OUTER behind them zeros. */
each_of void load_tile(Side side, const int32_t *table, int first, int count, int size, float *to) {
    for (int key = 0; key < count; key++) {
        int64_t at = place_of(side.cache, table, first + key, size);
        for (int i = 0; i < size; i += 8) _mm256_storeu_ps(to + key * size + i, load_numbers(side, at + i));
    }
    memset(to + count * size, 0, (size_t)(-count & (OUTER - 1)) * size * sizeof(float));
}

static size_t prompt_room(int size) { return (size_t)QUERIES * (2 * size + KEYS + 3) + 2 * KEYS * size; }

/* `queries` queries of rows from `position` on, `shared` a row: q [rows][by_row], the shared heads side by side. Their
   values, rounded, go to rows of `wide` numbers. `room`: `prompt_room` floats. */
each_of void attend_prompt(Side keys, Side values, int size, int shared, const float *q, size_t by_row, int rows, const int32_t *table,
                           int position, float *room, Rounded to, size_t stride) {
    const int queries = rows * shared, last = position + rows;
    float *turned = room, *out = turned + size * QUERIES, *scores = out + size * QUERIES, *top = scores + KEYS * QUERIES;
    float *total = top + QUERIES, *key = total + 2 * QUERIES, *value = key + KEYS * size;
    int32_t *seen = (int32_t *)(total + QUERIES);
    memset(room, 0, sizeof(float) * 2 * size * QUERIES);
    for (int i = 0; i < QUERIES; i++) {
        top[i] = LEAST, total[i] = 0, seen[i] = i < queries ? position + i / shared + 1 : 1;
        for (int d = 0; d < size && i < queries; d++) turned[d * QUERIES + i] = q[i / shared * by_row + i % shared * size + d];
    }
    for (int first = 0; first < last; first += KEYS) {
        const int known = last - first < KEYS ? last - first : KEYS, count = (known + OUTER - 1) / OUTER * OUTER;
        load_tile(keys, table, first, known, size, key);
        load_tile(values, table, first, known, size, value);
        for (int g = 0; g < queries; g += ABREAST) {
            for (int k = 0; k < count; k += OUTER) outer(key + k * size, size, 1, turned + g, size, scores + k * QUERIES + g, 1);
            for (int c = g; c < g + ABREAST; c += WIDE) weigh(scores + c, count, seen + c, top + c, total + c, out + c, size);
            for (int d = 0; d < size; d += OUTER) outer(value + d, 1, size, scores + g, count, out + d * QUERIES + g, 0);
        }
        for (int i = 0; i < QUERIES; i++) seen[i] -= KEYS;
    }
    for (int i = 0; i < queries; i++) {
        const size_t at = i / shared * stride + i % shared * size;
        for (int d = 0; d < size; d += BLOCK) {
            float part[BLOCK];
            for (int j = 0; j < BLOCK; j++) part[j] = out[(d + j) * QUERIES + i] / total[i];
            round_block(part, to.q + at + d, to.scales + (at + d) / BLOCK * 2);
        }
    }
}
