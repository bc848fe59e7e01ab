/* Products of activations with weights as the file has them: Q4_1 blocks for the layers, Q8_0 for the embedding and head.

   Activations are rounded to 16 bits per 32 of them, so that products are sums of whole numbers which lose no more than
   float32 does. An output is always the same sum in the same order: few rows unpack weights in registers as they pass, many
   rows share a panel that is unpacked once, and the bits are the same. */
#pragma once

#include "vectors.h"

#define BLOCK 32  /* weights that share a scale */
#define LANES 8   /* output rows that lie side by side in the packed weights: a group */
#define FEW 8     /* activation rows that share one unpacking in registers */
#define PANEL 64  /* output rows that are unpacked together for many activation rows */
#define TALL 6    /* of them at a time */
#if WIDE == 16
#define ACROSS 4  /* vectors of a panel at a time: TALL times ACROSS sums fill the registers */
#else
#define ACROSS 2
#endif

typedef struct { const uint8_t *words; const uint16_t *scales; } Matrix;
typedef struct { int16_t *q; float *scales; } Rounded; /* rows of 16-bit numbers; scale and sum of every 32 */
typedef struct { int16_t *pairs; float *scales; } Panel; /* [width / 2][PANEL] pairs; [width / BLOCK][d, m][PANEL] */

/* 32 floats to 16 bits each; what they are worth (scale) and what they add up to. */
static void round_block(const float *x, int16_t *q, float *scale) {
    float worth = most_of(x, BLOCK) / 32767.0f;
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

/* A row's place among rounded rows. */
each_of Rounded row_of(Rounded x, size_t row, int width) {
    return (Rounded){x.q + row * width, x.scales + row * width / BLOCK * 2};
}

static void norm_row(const float *x, const float *weight, float eps, int width, Rounded to) {
    __m256 squares = _mm256_setzero_ps();
    for (int i = 0; i < width; i += 8) squares = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), squares);
    __m256 scale = _mm256_set1_ps(1.0f / sqrtf(sum8(squares) / (float)width + eps));
    for (int i = 0; i < width; i += BLOCK) {
        float part[BLOCK];
        for (int j = 0; j < BLOCK; j += 8) {
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i + j), scale);
            _mm256_storeu_ps(part + j, _mm256_mul_ps(v, _mm256_loadu_ps(weight + i + j)));
        }
        round_block(part, to.q + i, to.scales + i / BLOCK * 2);
    }
}

/* A group's packed weights. A 32-bit lane holds two neighbours of one output row: Q4 in 4 slices of 4 bits (8 inputs in 32
   bytes), Q8 as bytes (2 inputs in 16 bytes). */
each_of const uint8_t *words_of(const Matrix *w, int eight, int group, int width) {
    return w->words + (size_t)group * width * (eight ? 8 : 4);
}

each_of const uint16_t *scales_of(const Matrix *w, int eight, int group, int width) {
    return w->scales + (size_t)group * (width / BLOCK) * LANES * (eight ? 1 : 2);
}

each_of __m256i slice_of(__m256i words, int slice) {
    return slice < 3 ? _mm256_and_si256(_mm256_srli_epi16(words, 4 * slice), _mm256_set1_epi16(15)) : _mm256_srli_epi16(words, 12);
}

/* A row of the matrix as it is, in float: a token's embedding. Q8 only. */
static void dense_row(const Matrix *w, int row, int width, float *to) {
    const int8_t *words = (const int8_t *)words_of(w, 1, row / LANES, width) + row % LANES * 2;
    const uint16_t *scales = scales_of(w, 1, row / LANES, width) + row % LANES;
    for (int i = 0; i < width; i++) to[i] = (float)words[i / 2 * 16 + i % 2] * half(scales + i / BLOCK * LANES);
}

/* One group's outputs of `rows` rows, at most FEW. */
each_of void few_rows(const Matrix *w, int eight, int group, Rounded x, int rows, int width, __m256 *out) {
    const int blocks = width / BLOCK;
    const uint8_t *words = words_of(w, eight, group, width);
    const uint16_t *scales = scales_of(w, eight, group, width);
    for (int r = 0; r < rows; r++) out[r] = _mm256_setzero_ps();
    for (int b = 0; b < blocks; b++) {
        __m256i sums[FEW];
        for (int r = 0; r < rows; r++) sums[r] = _mm256_setzero_si256();
        for (int part = 0; part < 4; part++) {
            __m256i v = eight ? _mm256_setzero_si256() : _mm256_loadu_si256((const __m256i *)words), slice;
            const int16_t *q = x.q + b * BLOCK + part * 8;
            for (int s = 0; s < 4; s++) {
                slice = eight ? _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(words + 16 * s))) : slice_of(v, s);
                for (int r = 0; r < rows; r++) {
                    const void *pair = q + (size_t)r * width + 2 * s;
                    sums[r] = dot8(sums[r], slice, _mm256_castps_si256(_mm256_broadcast_ss(pair)));
                    keep(sums[r]);
                }
            }
            words += eight ? 64 : 32;
        }
        __m256 d = load_half(scales), m = eight ? _mm256_setzero_ps() : load_half(scales + LANES);
        scales += eight ? LANES : 2 * LANES;
        for (int r = 0; r < rows; r++) {
            const float *scale = x.scales + ((size_t)r * blocks + b) * 2;
            out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), _mm256_mul_ps(d, _mm256_set1_ps(scale[0])), out[r]);
            if (!eight) out[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(scale[1]), out[r]);
        }
    }
}

/* The same for as many of `left` rows as are best taken at once; how many that were. */
each_of int some_rows(const Matrix *w, int eight, int group, Rounded x, int left, int width, __m256 *out) {
    const int count = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    if (count == 8) few_rows(w, eight, group, x, 8, width, out);
    else if (count == 4) few_rows(w, eight, group, x, 4, width, out);
    else if (count == 2) few_rows(w, eight, group, x, 2, width, out);
    else few_rows(w, eight, group, x, 1, width, out);
    return count;
}

/* Unpack the groups of a panel; a group below 0 is none and all zero. Q4 only. */
static void unpack(const Matrix *w, const int *groups, int width, Panel to) {
    for (int g = 0; g < PANEL / LANES; g++) {
        int16_t *pairs = to.pairs + g * LANES * 2;
        float *scale = to.scales + g * LANES;
        const __m256i there = _mm256_set1_epi32(groups[g] < 0 ? 0 : -1);
        const uint8_t *words = words_of(w, 0, groups[g] < 0 ? 0 : groups[g], width);
        const uint16_t *scales = scales_of(w, 0, groups[g] < 0 ? 0 : groups[g], width);
        for (int i = 0; i < width / 8; i++, words += 32) {
            __m256i v = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)words), there);
            for (int s = 0; s < 4; s++, pairs += PANEL * 2) _mm256_storeu_si256((__m256i *)pairs, slice_of(v, s));
        }
        for (int b = 0; b < width / BLOCK * 2; b++, scales += LANES, scale += PANEL)
            _mm256_storeu_ps(scale, _mm256_and_ps(load_half(scales), _mm256_castsi256_ps(there)));
    }
}

/* `rows` rows, at most TALL, times ACROSS vectors of a panel. */
each_of void tall(const int16_t *pairs, const float *scales, Rounded x, int rows, int width, float (*out)[PANEL]) {
    const int blocks = width / BLOCK;
    Wide to[TALL][ACROSS];
    for (int r = 0; r < rows; r++) for (int c = 0; c < ACROSS; c++) to[r][c] = wide(setzero_ps)();
    for (int b = 0; b < blocks; b++, scales += 2 * PANEL) {
        Ints sums[TALL][ACROSS];
        for (int r = 0; r < rows; r++) for (int c = 0; c < ACROSS; c++) sums[r][c] = (Ints){0};
        for (int p = 0; p < BLOCK; p += 2, pairs += 2 * PANEL) {
            Ints v[ACROSS];
            for (int c = 0; c < ACROSS; c++) v[c] = (Ints)wide(loadu_ps)((const float *)(pairs + c * WIDE * 2));
            for (int r = 0; r < rows; r++) {
                Ints both = (Ints)wide(set1_epi32)(*(const int32_t *)(x.q + (size_t)r * width + b * BLOCK + p));
                for (int c = 0; c < ACROSS; c++) {
                    sums[r][c] = dot(sums[r][c], v[c], both);
                    keep(sums[r][c]);
                }
            }
        }
        for (int r = 0; r < rows; r++) {
            const float *scale = x.scales + ((size_t)r * blocks + b) * 2;
            for (int c = 0; c < ACROSS; c++) {
                Wide d = wide(loadu_ps)(scales + c * WIDE), m = wide(loadu_ps)(scales + PANEL + c * WIDE);
                Wide sum = wide(cvtepi32_ps)((WideInts)sums[r][c]);
                to[r][c] = wide(fmadd_ps)(sum, wide(mul_ps)(d, wide(set1_ps)(scale[0])), to[r][c]);
                to[r][c] = wide(fmadd_ps)(m, wide(set1_ps)(scale[1]), to[r][c]);
            }
        }
    }
    for (int r = 0; r < rows; r++) for (int c = 0; c < ACROSS; c++) wide(storeu_ps)(out[r] + c * WIDE, to[r][c]);
}

/* All outputs of a panel for `left` rows, but not for more than TALL; how many that were. */
static int panel_rows(Panel w, Rounded x, int left, int width, float (*out)[PANEL]) {
    for (int lane = 0; lane < PANEL; lane += ACROSS * WIDE) {
        const int16_t *pairs = w.pairs + lane * 2;
        const float *scales = w.scales + lane;
        float (*to)[PANEL] = (float (*)[PANEL])(out[0] + lane);
        switch (left) {
        case 1: tall(pairs, scales, x, 1, width, to); break;
        case 2: tall(pairs, scales, x, 2, width, to); break;
        case 3: tall(pairs, scales, x, 3, width, to); break;
        case 4: tall(pairs, scales, x, 4, width, to); break;
        case 5: tall(pairs, scales, x, 5, width, to); break;
        default: tall(pairs, scales, x, TALL, width, to);
        }
    }
    return left < TALL ? left : TALL;
}
