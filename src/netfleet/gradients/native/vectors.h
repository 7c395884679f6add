// Vectors of numbers as wide as the processor's, and what chain.cpp and residual.cpp share besides.

#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace {

using i64 = int64_t;
using T = SCALAR;  // float or double: one library each, since compiling takes seconds

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16, REGISTERS = 32;
#else
constexpr int BYTES = 16, REGISTERS = 16;
#endif

#define APART __attribute__((noinline))  // inlined into one large function, they would be a fifth slower
constexpr int N = BYTES / sizeof(T);
typedef T Vec __attribute__((vector_size(BYTES)));
using Mask = decltype(Vec{} < Vec{});
using Whole = std::decay_t<decltype(Mask{}[0])>;  // the integers of a mask

inline Vec load(const T* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
// A vector that is used several times: GCC would read it from memory for every use, and be bound by that.
inline Vec held(const T* p) {
    Vec v = load(p);
#if defined(__x86_64__)
    asm("" : "+x"(v));
#endif
    return v;
}
inline Vec held(const Vec* p) { return held(reinterpret_cast<const T*>(p)); }
inline void store(T* p, Vec v) {
    std::memcpy(p, &v, sizeof v);
}
inline Vec all(T value) {
    return value - Vec{};
}
inline T sum(Vec v) {
    T a[N];
    std::memcpy(a, &v, sizeof v);
    for (int half = N / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    return a[0];
}
inline T total(const T* values, i64 count) {
    Vec s = {};
    i64 i = 0;
    for (; i + N <= count; i += N) s += load(values + i);
    T t = sum(s);
    for (; i < count; i++) t += values[i];
    return t;
}
// Σ v²
inline T squares(const T* values, i64 count) {
    Vec s = {};
    i64 i = 0;
    for (; i + N <= count; i += N) s += load(values + i) * load(values + i);
    T t = sum(s);
    for (; i < count; i++) t += values[i] * values[i];
    return t;
}
inline i64 up(i64 n, i64 multiple) { return (n + multiple - 1) / multiple * multiple; }
inline i64 least(i64 a, i64 b) { return a < b ? a : b; }

// A range cut into pieces of nearly equal length, at most `most` long.
struct Pieces {
    i64 length, count, at = 0, from = 0, to = 0;

    Pieces(i64 length, i64 most) : length(length), count((length + most - 1) / most) { end(); }
    bool more() const { return at < count; }
    i64 size() const { return to - from; }
    void next() { from = to, at++, end(); }
    void end() { to = length * (at + 1) / (count ? count : 1); }
};

// Hands out pieces of one allocation; with no memory it only counts.
struct Arena {
    char* base;
    i64 used = 0;

    template <typename E>
    E* take(i64 count) {
        const i64 at = used;
        used += up(count * static_cast<i64>(sizeof(E)) + 2 * BYTES, 64);  // room to read one vector past the end
        return base ? reinterpret_cast<E*>(base + at) : nullptr;
    }
};

}  // namespace
