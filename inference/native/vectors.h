/* What the processor has: 8 numbers at a time (AVX2), or 16 (AVX-512), and sums of products of 16-bit numbers.

   Everything is written so that the width changes speed and never a bit. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define each_of static inline __attribute__((always_inline))
/* Keeps the compiler from summing in another order, which would need more registers than there are. */
#define keep(vector) __asm__("" : "+v"(vector))

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VL__
#define WIDE 16
#define wide(operation) _mm512_##operation
typedef __m512 Wide;
typedef __m512i WideInts;
#else
#define WIDE 8
#define wide(operation) _mm256_##operation
typedef __m256 Wide;
typedef __m256i WideInts;
#endif
typedef int32_t Ints __attribute__((vector_size(4 * WIDE)));

each_of __m256i dot8(__m256i sums, __m256i a, __m256i b) {
#if defined __AVX512VNNI__ && WIDE == 16
    return _mm256_dpwssd_epi32(sums, a, b);
#elif defined __AVXVNNI__
    return _mm256_dpwssd_avx_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
}

/* Each lane's sum grows by the products of its two 16-bit neighbours. */
each_of Ints dot(Ints sums, Ints a, Ints b) {
#if WIDE == 8
    return (Ints)dot8((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined __AVX512VNNI__
    return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#else
    return sums + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
}

each_of __m256 load_half(const uint16_t *at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at)); }

each_of float half(const uint16_t *at) { return _cvtsh_ss(*at); }

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

each_of float most_of(const float *x, int count) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < count; i += 8) most = _mm256_max_ps(most, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    return max8(most);
}

/* e^x to 1e-7: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
#define EXPONENTIAL(name, vector, mm)                                                                       \
    each_of vector name(vector x) {                                                                        \
        x = _##mm##_max_ps(_##mm##_min_ps(x, _##mm##_set1_ps(88.0f)), _##mm##_set1_ps(-87.0f));                            \
        vector n = _##mm##_cvtepi32_ps(_##mm##_cvtps_epi32(_##mm##_mul_ps(x, _##mm##_set1_ps(1.44269504f))));              \
        vector r = _##mm##_fnmadd_ps(n, _##mm##_set1_ps(0.693359375f), x);                                         \
        r = _##mm##_fnmadd_ps(n, _##mm##_set1_ps(-2.12194440e-4f), r);                                             \
        vector p = _##mm##_set1_ps(1.0f / 720);                                                                \
        const float rest[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};                          \
        for (int i = 0; i < 6; i++) p = _##mm##_fmadd_ps(p, r, _##mm##_set1_ps(rest[i]));                          \
        return _##mm##_mul_ps(p, (vector)_##mm##_slli_epi32(_##mm##_add_epi32(_##mm##_cvtps_epi32(n), _##mm##_set1_epi32(127)), 23)); \
    }
EXPONENTIAL(exp8, __m256, mm256)
#if WIDE == 16
EXPONENTIAL(exp_wide, __m512, mm512)
#else
#define exp_wide exp8
#endif
