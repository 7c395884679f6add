// Convolutions of N images at once, one in each lane of a vector.
//
// An image is stored [group of 4 channels][height][width][4][lane]. No kernel size, stride or number of channels leaves
// lanes unused then, and what lies together fits the first-level cache however many channels there are.

#pragma once

#include <utility>

#include "vectors.h"

namespace {

constexpr int Q = 4;  // channels of a group
constexpr int PIXELS = REGISTERS == 32 ? 6 : 3;  // whose Q sums each fit the registers
constexpr i64 STRIP = 64;  // pixels whose products are summed before the lanes are: they stay in the first-level cache
constexpr int TAPS = 9;

struct Shape {
    i64 channels, height, width, border;

    i64 groups() const { return (channels + Q - 1) / Q; }
    i64 row() const { return (width + 2 * border) * Q; }
    i64 plane() const { return (height + 2 * border) * row(); }
    i64 size() const { return groups() * plane(); }
    i64 at(i64 h, i64 w) const { return (h + border) * row() + (w + border) * Q; }
};

// Where the inputs of an output pixel are, and which place of the kernel each is multiplied with.
struct Taps {
    i64 count = 0, at[TAPS], kernel[TAPS];

    void add(i64 where, i64 place) { at[count] = where, kernel[count] = place, count++; }
};

// A kernel in the order [output group][input group][place][4 inputs][4 outputs].
struct Kernel {
    const T* values;
    i64 places;

    i64 group() const { return places * Q * Q; }
};

// The inputs of some output pixels: `step` is the distance from one pixel's to the next one's.
struct Source {
    const Taps& taps;
    const Shape& shape;
    const Vec* at;
    i64 step;

    Source from(i64 pixel) const { return {taps, shape, at + pixel * step, step}; }
};

// Those pixels, `apart` from each other; their sums are stored, or added to what is there.
struct Target {
    Vec* at;
    i64 apart;
    bool add;

    Target from(i64 pixel) const { return {at + pixel * apart, apart, add}; }
};

// P pixels of a group of output channels. One loop only: between nested ones GCC would move all sums.
template <int P>
inline void pixels(const Source& source, Kernel kernel, const Target& target) {
    Vec sums[P][Q] = {};
    const Taps& taps = source.taps;
    const i64 plane = source.shape.plane(), step = source.step, group = kernel.group(), last = taps.count - 1;
    const Vec* in = source.at;
    const T* values = kernel.values;
    for (i64 n = source.shape.groups() * taps.count, t = 0; n > 0; n--) {
        const Vec* left = in + taps.at[t];
        const T* right = values + taps.kernel[t] * Q * Q;
        const bool next = t == last;
        in += next ? plane : 0, values += next ? group : 0, t = next ? 0 : t + 1;
#pragma GCC unroll 4
        for (int c = 0; c < Q; c++) {
            Vec value[P];
            for (int p = 0; p < P; p++) value[p] = held(left + p * step + c);
            for (int o = 0; o < Q; o++) {
                const Vec factor = all(right[c * Q + o]);
                for (int p = 0; p < P; p++) sums[p][o] += value[p] * factor;
            }
        }
    }
    Vec* out = target.at;
    const i64 apart = target.apart;
    if (target.add)
        for (int p = 0; p < P; p++)
            for (int o = 0; o < Q; o++) sums[p][o] += out[p * apart + o];
    for (int p = 0; p < P; p++)
        for (int o = 0; o < Q; o++) out[p * apart + o] = sums[p][o];
}

template <int P>
inline void some_pixels(i64 count, const Source& source, Kernel kernel, const Target& target) {
    if (count == P) return pixels<P>(source, kernel, target);
    if constexpr (P > 1) some_pixels<P - 1>(count, source, kernel, target);
}

// `count` pixels of all output channels, in an image shaped as `to`.
inline void pixel_row(i64 count, const Source& source, Kernel kernel, const Shape& to, Target target) {
    for (i64 g = 0; g < to.groups(); g++) {
        for (Pieces p(count, PIXELS); p.more(); p.next())
            some_pixels<PIXELS>(p.size(), source.from(p.from), kernel, target.from(p.from));
        target.at += to.plane(), kernel.values += source.shape.groups() * kernel.group();
    }
}

// Sums the lanes of two sets of vectors whose sums so far take up L lanes each, down to L / 2.
template <int L, int... I>
inline Vec fold(Vec a, Vec b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (I % L < L / 2 ? I : N + I - L / 2)...) +
           __builtin_shufflevector(a, b, (I % L < L / 2 ? I + L / 2 : N + I)...);
#else
    return __builtin_shuffle(a, b, Mask{(I % L < L / 2 ? I : N + I - L / 2)...}) +
           __builtin_shuffle(a, b, Mask{(I % L < L / 2 ? I + L / 2 : N + I)...});
#endif
}

// The sums over the lanes of L vectors, which each hold N / L of them already, in the lanes of the first.
template <int L>
inline Vec lane_sums(const Vec* v) {
    if constexpr (L == 1) {
        return v[0];
    } else {
        Vec half[L / 2];
        for (int i = 0; i < L / 2; i++) half[i] = fold<L>(v[i], v[i + L / 2], std::make_integer_sequence<int, N>());
        return lane_sums<L / 2>(half);
    }
}

// Pixels of a group of channels: rows of them, and how far apart rows and columns are.
struct Grid {
    const Vec* at;
    i64 row, column;
};

// out[4 inputs][4 outputs] += Σ over pixels and lanes of input × gradient.
inline void products(Grid in, Grid d, i64 rows, i64 columns, T* out) {
    Vec sums[Q * Q] = {};
    for (i64 h = 0; h < rows; h++, in.at += in.row, d.at += d.row) {
        const Vec *left = in.at, *right = d.at;
        for (i64 w = 0; w < columns; w++, left += in.column, right += d.column) {
            Vec r[Q];
            for (int o = 0; o < Q; o++) r[o] = held(right + o);
            for (int c = 0; c < Q; c++) {
                const Vec l = held(left + c);
                for (int o = 0; o < Q; o++) sums[c * Q + o] += l * r[o];
            }
        }
    }
    for (int i = 0; i < Q * Q; i += N) {
        T s[N];
        const Vec v = lane_sums<N>(sums + i);
        std::memcpy(s, &v, sizeof v);
        for (int j = 0; j < N; j++) out[i + j] += s[j];
    }
}
static_assert(Q * Q % N == 0, "a tile of sums fills whole vectors");

}  // namespace
