// Square convolutions of kernel 1 or 3 with half their kernel as padding: forward, and backward to input and kernel.
//
// A 3×3 kernel g of stride 1 on images of even sides is applied by Winograd's method (Lavin, Gray 2016): 2×2 pixels y
// are made of 4×4 pixels d as y = Aᵀ[(G g Gᵀ) ∘ (Bᵀ d B)]A, with 16 multiplications for 36. Over all channels and tiles
// the 16 places of a transformed tile are 16 products of matrices. The same holds for the kernel's gradient.

#pragma once

#include "lanes.h"

namespace {

constexpr i64 TILES = 16;  // that are transformed together, about: they stay in the second-level cache
constexpr i64 SUMMED = 32;  // the same where lanes are summed afterwards, which should be rare
constexpr int PLACES = 16;  // of a transformed tile

// Bᵀ d B of a tile of the input, whose rows are `row` apart; places are stored `apart` from each other.
inline void transform_input(const Vec* d, i64 row, Vec* out, i64 apart) {
    Vec t[4][4];
    for (int j = 0; j < 4; j++) {
        const Vec a = d[j * Q], b = d[row + j * Q], c = d[2 * row + j * Q], e = d[3 * row + j * Q];
        t[0][j] = a - c, t[1][j] = b + c, t[2][j] = c - b, t[3][j] = b - e;
    }
    for (int i = 0; i < 4; i++, out += 4 * apart) {
        out[0] = t[i][0] - t[i][2], out[apart] = t[i][1] + t[i][2];
        out[2 * apart] = t[i][2] - t[i][1], out[3 * apart] = t[i][1] - t[i][3];
    }
}

// Aᵀ m A, a tile of the output.
inline void transform_output(const Vec* m, i64 apart, Vec* y, i64 row, bool add) {
    Vec t[2][4];
    for (int j = 0; j < 4; j++) {
        const Vec a = m[j * apart], b = m[(4 + j) * apart], c = m[(8 + j) * apart], e = m[(12 + j) * apart];
        t[0][j] = a + b + c, t[1][j] = b - c - e;
    }
    for (int i = 0; i < 2; i++, y += row) {
        const Vec left = t[i][0] + t[i][1] + t[i][2], right = t[i][1] - t[i][2] - t[i][3];
        y[0] = add ? y[0] + left : left, y[Q] = add ? y[Q] + right : right;
    }
}

// A dy Aᵀ, of a tile of the output's gradient.
inline void transform_gradient(const Vec* dy, i64 row, Vec* out, i64 apart) {
    for (int i = 0; i < 4; i++, out += 4 * apart) {
        const Vec a[2] = {dy[0], dy[Q]}, b[2] = {dy[row], dy[row + Q]};
        Vec t[2];
        for (int j = 0; j < 2; j++) t[j] = i == 0 ? a[j] : i == 1 ? a[j] + b[j] : i == 2 ? a[j] - b[j] : -b[j];
        out[0] = t[0], out[apart] = t[0] + t[1], out[2 * apart] = t[0] - t[1], out[3 * apart] = -t[1];
    }
}

struct Convolution {
    i64 kernel, stride;
    Shape in, out;  // `in` with a border, `out` without

    bool by_tiles() const {
        return kernel == 3 && stride == 1 && in.channels % Q == 0 && in.height % 2 == 0 && in.width % 2 == 0;
    }
    i64 places() const { return by_tiles() ? PLACES : kernel * kernel; }
    i64 weights() const { return in.groups() * out.groups() * places() * Q * Q; }
    i64 row_tiles() const { return in.width / 2; }
    i64 tile_rows(i64 most) const { return most > row_tiles() ? least(most / row_tiles(), in.height / 2) : 1; }
    // Vectors of one place of transformed tiles; one more group, so that places lie in other lines of the cache.
    static i64 transformed(const Shape& s, i64 tiles) { return s.groups() * tiles * Q + Q; }
    // Vectors of scratch memory that the functions below need.
    i64 scratch() const {
        const i64 most = tile_rows(TILES > SUMMED ? TILES : SUMMED) * row_tiles();
        return by_tiles() ? PLACES * (transformed(in, most) + transformed(out, most)) : 0;
    }
    i64 rows_together() const { return by_tiles() ? 2 * tile_rows(TILES) : 1; }

    // ------------------------------------------------------------------------------------------------------- kernels

    // Where 4 × 4 weights begin: all of a place lie together where places are worked on one by one.
    i64 line(i64 pair, i64 k) const {
        return (by_tiles() ? k * in.groups() * out.groups() + pair : pair * places() + k) * Q * Q;
    }

    // Kernels in the order for the forward pass and, with inputs and outputs exchanged, for the backward pass.
    APART void pack(const T* w, T* forward, T* backward) const {
        const i64 size = kernel * kernel;
        for (i64 o = 0; o < out.groups(); o++)
            for (i64 c = 0; c < in.groups(); c++) {
                Weights there = {}, back = {};
                for (i64 i = 0; i < Q; i++)
                    for (i64 j = 0; j < Q && c * Q + j < in.channels; j++) {
                        const T* from = w + ((o * Q + i) * in.channels + c * Q + j) * size;
                        for (i64 k = 0; k < size; k++) {
                            there[k][j * Q + i] = from[k];
                            back[by_tiles() ? size - 1 - k : k][i * Q + j] = from[k];
                        }
                    }
                place(there, o * in.groups() + c, forward);
                if (backward) place(back, c * out.groups() + o, backward);
            }
    }
    using Weights = T[PLACES][Q * Q];

    void place(Weights& w, i64 pair, T* packed) const {
        if (by_tiles()) transform_kernel(w);
        for (i64 k = 0; k < places(); k++) std::memcpy(packed + line(pair, k), w[k], sizeof w[k]);
    }

    // G g Gᵀ
    static void transform_kernel(Weights& w) {
        for (int i = 0; i < Q * Q; i++) {
            T t[4][3], u[4][4];
            for (int j = 0; j < 3; j++) {
                const T a = w[j][i], b = w[3 + j][i], c = w[6 + j][i];
                t[0][j] = a, t[1][j] = (a + b + c) / 2, t[2][j] = (a - b + c) / 2, t[3][j] = c;
            }
            for (int j = 0; j < 4; j++) {
                const T a = t[j][0], b = t[j][1], c = t[j][2];
                u[j][0] = a, u[j][1] = (a + b + c) / 2, u[j][2] = (a - b + c) / 2, u[j][3] = c;
            }
            for (int k = 0; k < PLACES; k++) w[k][i] = u[k / 4][k % 4];
        }
    }

    // The kernel's gradient in torch's order, from that in the forward order.
    APART void unpack(const T* packed, T* w) const {
        const i64 size = kernel * kernel;
        for (i64 o = 0; o < out.groups(); o++)
            for (i64 c = 0; c < in.groups(); c++) {
                Weights d;
                const i64 pair = o * in.groups() + c;
                for (i64 k = 0; k < places(); k++) std::memcpy(d[k], packed + line(pair, k), sizeof d[k]);
                if (by_tiles()) transform_back(d);
                for (i64 i = 0; i < Q; i++)
                    for (i64 j = 0; j < Q && c * Q + j < in.channels; j++) {
                        T* to = w + ((o * Q + i) * in.channels + c * Q + j) * size;
                        for (i64 k = 0; k < size; k++) to[k] = d[k][j * Q + i];
                    }
            }
    }

    // Gᵀ d G
    static void transform_back(Weights& w) {
        for (int i = 0; i < Q * Q; i++) {
            T t[3][4], g[3][3];
            for (int j = 0; j < 4; j++) {
                const T a = w[j][i], b = w[4 + j][i], c = w[8 + j][i], d = w[12 + j][i];
                t[0][j] = a + (b + c) / 2, t[1][j] = (b - c) / 2, t[2][j] = (b + c) / 2 + d;
            }
            for (int j = 0; j < 3; j++) {
                const T a = t[j][0], b = t[j][1], c = t[j][2], d = t[j][3];
                g[j][0] = a + (b + c) / 2, g[j][1] = (b - c) / 2, g[j][2] = (b + c) / 2 + d;
            }
            for (int k = 0; k < 9; k++) w[k][i] = g[k / 3][k % 3];
        }
    }

    // ------------------------------------------------------------------------------------------------------ the tiles

    // Rows of tiles that are worked on together.
    struct Strip {
        i64 first, rows;
    };

    // A strip of an image with a border through the transformed kernel, into an image shaped as `to`.
    APART void tiles(Strip strip, const Shape& from, const Vec* x, const T* weights, const Shape& to, Vec* y, bool add,
                     Vec* scratch) const {
        const i64 count = strip.rows * row_tiles(), left = transformed(from, count), right = transformed(to, count);
        Vec* made = scratch + PLACES * left;
        input_tiles(strip, from, x, scratch, left);
        Taps one;
        one.add(0, 0);
        const Shape before = {from.channels, 1, count, 0}, after = {to.channels, 1, count, 0};
        for (i64 k = 0; k < PLACES; k++, weights += in.groups() * out.groups() * Q * Q)
            pixel_row(count, {one, before, scratch + k * left, Q}, {weights, 1}, after, {made + k * right, Q, false});
        each_tile(strip, to, y, [&](Vec* tile, i64 i) { transform_output(made + i, right, tile, to.row(), add); });
    }

    // Calls f(first pixel of a tile, number of the tile and channel) for all tiles of a strip, channel by channel.
    template <typename V, typename F>
    void each_tile(Strip strip, const Shape& s, V* image, F f) const {
        i64 number = 0;
        for (i64 g = 0; g < s.groups(); g++, image += s.plane())
            for (i64 h = strip.first; h < strip.first + strip.rows; h++)
                for (i64 w = 0; w < row_tiles(); w++)
                    for (int q = 0; q < Q; q++) f(image + s.at(2 * h, 2 * w) + q, number++);
    }

    void input_tiles(Strip strip, const Shape& s, const Vec* x, Vec* out, i64 apart) const {
        const Vec* shifted = x - s.row() - Q;  // a tile begins a row and a column before the pixels that it makes
        each_tile(strip, s, shifted, [&](const Vec* tile, i64 i) { transform_input(tile, s.row(), out + i, apart); });
    }

    APART void tile_weight_gradient(const Vec* x, const Shape& d, const Vec* dz, T* dweights, Vec* scratch) const {
        for (Pieces p(in.height / 2, tile_rows(SUMMED)); p.more(); p.next()) {
            const Strip strip = {p.from, p.size()};
            const i64 count = strip.rows * row_tiles(), left = transformed(in, count), right = transformed(out, count);
            Vec* gradients = scratch + PLACES * left;
            input_tiles(strip, in, x, scratch, left);
            each_tile(strip, d, dz, [&](const Vec* t, i64 i) { transform_gradient(t, d.row(), gradients + i, right); });
            T* to = dweights;
            for (i64 k = 0; k < PLACES; k++)
                for (i64 o = 0; o < out.groups(); o++)
                    for (i64 c = 0; c < in.groups(); c++, to += Q * Q) {
                        const Vec *a = scratch + k * left + c * count * Q, *b = gradients + k * right + o * count * Q;
                        products({a, 0, Q}, {b, 0, Q}, 1, count, to);
                    }
        }
    }

    // --------------------------------------------------------------------------------------------------- what is used

    // Rows h to h + rows_together() of the output.
    void forward_rows(const Vec* x, const T* weights, i64 h, Vec* z, Vec* scratch) const {
        if (by_tiles()) return tiles(strip(h), in, x, weights, out, z, false, scratch);
        Taps taps;
        for (i64 r = 0; r < kernel; r++) {
            const i64 from = h * stride + r - kernel / 2;
            if (from < 0 || from >= in.height) continue;
            for (i64 k = 0; k < kernel; k++) taps.add(in.at(from, k - kernel / 2), r * kernel + k);
        }
        pixel_row(out.width, {taps, in, x, stride * Q}, {weights, places()}, out, {z + out.at(h, 0), Q, false});
    }
    Strip strip(i64 h) const { return {h / 2, least(tile_rows(TILES), (in.height - h) / 2)}; }

    // The same rows of the input's gradient, from the output's with a border, into an image shaped as `to`.
    void backward_rows(const Vec* dz, const T* weights, i64 h, const Shape& to, Vec* dx, bool add, Vec* scratch) const {
        const Shape d = {out.channels, out.height, out.width, 1};
        if (by_tiles()) return tiles(strip(h), d, dz, weights, to, dx, add, scratch);
        for (i64 first = 0; first < least(stride, in.width); first++) {  // columns that see the same places
            Taps taps;
            for (i64 r = 0; r < kernel; r++)
                for (i64 k = 0; k < kernel; k++) {
                    const i64 y = h + kernel / 2 - r, x = first + kernel / 2 - k;  // × stride
                    if (y < 0 || y % stride || y / stride >= out.height || (x + stride) % stride) continue;
                    taps.add(d.at(y / stride, (x + stride) / stride - 1), r * kernel + k);
                }
            const i64 count = (in.width - first + stride - 1) / stride;
            const Target target = {dx + to.at(h, first), stride * Q, add};
            if (taps.count || !add) pixel_row(count, {taps, d, dz, Q}, {weights, places()}, to, target);
        }
    }

    // Adds the kernel's gradient, from the output's with a border, in the forward order.
    APART void weight_gradient(const Vec* x, const Vec* dz, T* dweights, Vec* scratch) const {
        const Shape d = {out.channels, out.height, out.width, 1};
        if (by_tiles()) return tile_weight_gradient(x, d, dz, dweights, scratch);
        for (Pieces p(out.height, STRIP / out.width > 1 ? STRIP / out.width : 1); p.more(); p.next())
            for (i64 o = 0; o < out.groups(); o++)
                for (i64 c = 0; c < in.groups(); c++)
                    for (i64 k = 0; k < places(); k++) {
                        const i64 row = p.from * stride + k / kernel - kernel / 2;
                        const Vec* left = x + c * in.plane() + in.at(row, k % kernel - kernel / 2);
                        const Vec* right = dz + o * d.plane() + d.at(p.from, 0);
                        const Grid inputs = {left, stride * in.row(), stride * Q}, gradients = {right, d.row(), Q};
                        T* to = dweights + line(o * in.groups() + c, k);
                        products(inputs, gradients, p.size(), out.width, to);
                    }
    }
};

}  // namespace
