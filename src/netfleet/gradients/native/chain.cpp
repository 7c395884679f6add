// Losses and gradients of a chain of convolutions and linear layers, for many models at once.
//
// Images are stored [height][width][channel] with their zero border, so that the part of a kernel row that meets the
// image is contiguous. Two facts make the backward pass cheap. Max-pooling (and ReLU) let through one pixel of a
// window per channel, so of the gradient of a convolution's output only those "hits" are visited, not the zeros.
// And a batch is worked off sample by sample, so that what one sample needs stays in the first-level cache.
//
// Each task (one model on one list of rows) is computed by one thread in one order: results do not depend on the
// number of threads. Threads draw tasks from a shared counter.

#include "heads.h"

namespace {

constexpr i64 BLOCK = 32;  // samples that are worked on together: bounds the scratch memory
constexpr uint8_t DEAD = 255;  // the place in a window that ReLU switched off
constexpr int TILE = 4;  // rows of a tile of 3 columns whose sums and factors fit the registers

// One layer, as native/layers.py writes it. A linear layer has kernel = 0, cin inputs and cout outputs.
struct Layer {
    i64 kernel_h, kernel_w, cin, height, width, cout, stride, pad_h, pad_w, pool, relu, weight, bias;

    bool convolves() const { return kernel_h > 0; }
    i64 row() const { return (width + 2 * pad_w) * cin; }  // elements of one padded input row
    i64 input() const { return convolves() ? (height + 2 * pad_h) * row() : cin; }
    i64 rows() const { return ((height + 2 * pad_h - kernel_h) / stride + 1) / pool; }  // of the output, pooled
    i64 columns() const { return ((width + 2 * pad_w - kernel_w) / stride + 1) / pool; }
    i64 cells() const { return rows() * columns(); }
    i64 span() const { return kernel_w * cin; }  // the contiguous part of a kernel row
};

struct Job {
    const Layer* layers;
    i64 depth;
    i64 tasks;
    const i64* model;    // [tasks] which row of x
    const i64* offset;   // [tasks + 1] into rows and weights
    const T* x;          // [models][d]
    i64 d;
    const T* data;       // [samples][size]
    i64 size;
    Head head;
    const i64* rows;     // the samples of all tasks, one task after the other
    const T* weights;    // of the samples in the loss, or null for 1 / (samples of the task)
    const T* clip;       // null, or the largest norm that a sample's gradient keeps; the clipped gradients are summed
    T* gradient;         // [tasks][d], or null if only values are wanted
    T* value;            // [tasks] the weighted sum of the losses
    i64* correct;        // [tasks] how many answers are right
    std::atomic<i64>* next;
};

// ---------------------------------------------------------------------------------------------- convolution, forward

// P pixels of an output row, V vectors of output channels: weights [kernel row][span][channels].
template <int P, int V>
inline void pixels(const Layer& l, const T* in, const T* weights, const T* bias, i64 channels, T* out) {
    Vec a[P][V];
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++) a[p][v] = load(bias + v * N);
    const i64 span = l.span(), step = l.stride * l.cin, row = l.row();
    for (i64 r = 0; r < l.kernel_h; r++, in += row) {
        for (i64 j = 0; j < span; j++, weights += channels) {
            Vec w[V];
            for (int v = 0; v < V; v++) w[v] = held(weights + v * N);
            for (int p = 0; p < P; p++) {
                const Vec value = all(in[p * step + j]);
                for (int v = 0; v < V; v++) a[p][v] += value * w[v];
            }
        }
    }
    for (int p = 0; p < P; p++)
        for (int v = 0; v < V; v++) store(out + p * channels + v * N, a[p][v]);
}

template <int P, int V>
inline void some_pixels(i64 count, const Layer& l, const T* in, const T* w, const T* bias, i64 channels, T* out) {
    if (count == P) return pixels<P, V>(l, in, w, bias, channels, out);
    if constexpr (P > 1) some_pixels<P - 1, V>(count, l, in, w, bias, channels, out);
}

// One row of the output, in pieces that keep all sums in registers.
template <int V>
void output_row(const Layer& l, const T* in, const T* weights, const T* bias, i64 count, i64 channels, T* out) {
    constexpr int P = (REGISTERS - V - 2) / V;
    for (Pieces p(count, P); p.more(); p.next())
        some_pixels<P, V>(p.size(), l, in + p.from * l.stride * l.cin, weights, bias, channels, out + p.from * channels);
}

// The largest of each window, with its place: `lines` are K rows of the convolution. NaN counts as largest.
template <int K>
inline void pool_row(const T* lines, i64 columns, i64 channels, bool relu, i64 cout, T* out, uint8_t* place, i64 pool) {
    const i64 k = K ? K : pool, length = columns * k * channels;
    for (i64 x = 0; x < columns; x++) {
        for (i64 c = 0; c < channels; c += N) {
            const T* window = lines + x * k * channels + c;
            Vec best = load(window);
            Mask at = {};
            for (i64 h = 0; h < k; h++)
                for (i64 w = h ? 0 : 1; w < k; w++) {
                    const Vec v = load(window + h * length + w * channels);
                    const Mask better = (v > best) | (v != v);
                    best = better ? v : best;
                    at = better ? (Mask{} + Whole(h * k + w)) : at;
                }
            if (relu) {
                const Mask dead = best <= Vec{};
                best = dead ? Vec{} : best;
                at |= dead;  // all bits set: DEAD
            }
            typedef uint8_t Bytes __attribute__((vector_size(N)));
            const Bytes bytes = __builtin_convertvector(at, Bytes);
            std::memcpy(place + x * channels + c, &bytes, sizeof bytes);
            if (c + N <= cout)
                store(out + x * cout + c, best);
            else
                std::memcpy(out + x * cout + c, &best, sizeof(T) * (cout - c));
        }
    }
}

// ---------------------------------------------------------------------------------------------- convolution, backward

// The pixels of one output channel that have a gradient.
struct Hits {
    i64 count;
    const T* value;
    const int32_t* at;  // where the pixel's patch begins in the input
};

// dW += Σ over hits of value × patch, R kernel rows by V vectors at a time.
template <int R, int V>
inline void weight_tile(const Hits hits, const T* in, i64 row, T* out, i64 stride) {
    constexpr int LANES = R * V <= 4 ? 2 : 1;  // independent sums, where there are too few to hide the latency
    Vec a[LANES][R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            a[0][r][v] = load(out + r * stride + v * N);
            for (int n = 1; n < LANES; n++) a[n][r][v] = Vec{};
        }
    i64 i = 0;
    for (; i + LANES <= hits.count; i += LANES)
        for (int n = 0; n < LANES; n++) {
            const T* patch = in + hits.at[i + n];
            const Vec g = all(hits.value[i + n]);
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) a[n][r][v] += g * load(patch + r * row + v * N);
        }
    if (i < hits.count)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) a[0][r][v] += all(hits.value[i]) * load(in + hits.at[i] + r * row + v * N);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            for (int n = 1; n < LANES; n++) a[0][r][v] += a[n][r][v];
            store(out + r * stride + v * N, a[0][r][v]);
        }
}

// The input's gradient += value × kernel at every hit's patch.
template <int R, int V>
inline void input_tile(const Hits hits, T* out, i64 row, const T* weights, i64 stride) {
    Vec w[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) w[r][v] = load(weights + r * stride + v * N);
    for (i64 i = 0; i < hits.count; i++) {
        T* patch = out + hits.at[i];
        const Vec g = all(hits.value[i]);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++)
                store(patch + r * row + v * N, load(patch + r * row + v * N) + g * w[r][v]);
    }
}

template <int R, int V>
inline void tile(const Hits& hits, const T* in, T* dweights, T* din, const T* weights, i64 row, i64 stride) {
    weight_tile<R, V>(hits, in, row, dweights, stride);
    if (din) input_tile<R, V>(hits, din, row, weights, stride);
}

// All tiles of one output channel's kernel [rows][stride], stride = the span rounded up to whole vectors.
void channel(const Layer& l, const Hits& hits, const T* in, T* dweights, T* din, const T* weights, i64 stride) {
    const i64 row = l.row();
    for (i64 r = 0; r < l.kernel_h;) {
        const i64 R = least(3, l.kernel_h - r);
        for (i64 j = 0; j < stride;) {
            const i64 V = least(3, (stride - j) / N), at = r * stride + j;
            T* d = din ? din + r * row + j : nullptr;
            const T* p = in + r * row + j;
            switch (R * 4 + V) {
                case 5: tile<1, 1>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 6: tile<1, 2>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 7: tile<1, 3>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 9: tile<2, 1>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 10: tile<2, 2>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 11: tile<2, 3>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 13: tile<3, 1>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 14: tile<3, 2>(hits, p, dweights + at, d, weights + at, row, stride); break;
                case 15: tile<3, 3>(hits, p, dweights + at, d, weights + at, row, stride); break;
            }
            j += V * N;
        }
        r += R;
    }
}

// ------------------------------------------------------------------------------------------------------ linear layers

// The rows of a matrix: at equal distances, or wherever they lie (samples in the data set).
struct Even {
    const T* first;
    i64 apart;
    const T* operator[](i64 row) const { return first + row * apart; }
};
struct Anywhere {
    const T* const* at;
    const T* operator[](i64 row) const { return at[row]; }
    Anywhere from(i64 row) const { return {at + row}; }
};

// C[m][n…] (+)= Σ_k A[k·ak + m·am] · B[k][n…], a tile of M rows by V vectors.
template <int M, int V, typename Rows>
inline void outer_tile(i64 K, const T* A, i64 ak, i64 am, Rows B, i64 n, T* C, i64 c, bool add) {
    Vec s[M][V];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) s[m][v] = add ? load(C + m * c + n + v * N) : Vec{};
    for (i64 k = 0; k < K; k++) {
        const T* row = B[k] + n;
        Vec right[V];
        for (int v = 0; v < V; v++) right[v] = held(row + v * N);
        for (int m = 0; m < M; m++) {
            const Vec left = all(A[k * ak + m * am]);
            for (int v = 0; v < V; v++) s[m][v] += left * right[v];
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) store(C + m * c + n + v * N, s[m][v]);
}

template <int M, int V, typename Rows>
inline void outer_rows(i64 count, i64 K, const T* A, i64 ak, i64 am, Rows B, i64 n, T* C, i64 c, bool add) {
    if (count == M) return outer_tile<M, V>(K, A, ak, am, B, n, C, c, add);
    if constexpr (M > 1) outer_rows<M - 1, V>(count, K, A, ak, am, B, n, C, c, add);
}

template <int V, typename Rows>
inline void outer_columns(i64 M, i64 K, const T* A, i64 ak, i64 am, Rows B, i64 n, T* C, i64 c, bool add) {
    for (Pieces p(M, TILE); p.more(); p.next())
        outer_rows<TILE, V>(p.size(), K, A + p.from * am, ak, am, B, n, C + p.from * c, c, add);
}

template <typename Rows>
void outer(i64 M, i64 columns, i64 K, const T* A, i64 ak, i64 am, Rows B, T* C, i64 c, bool add) {
    i64 n = 0;
    for (; n + 3 * N <= columns; n += 3 * N) outer_columns<3>(M, K, A, ak, am, B, n, C, c, add);
    for (; n + N <= columns; n += N) outer_columns<1>(M, K, A, ak, am, B, n, C, c, add);
    for (i64 m = 0; m < M && n < columns; m++)
        for (i64 j = n; j < columns; j++) {
            T s = add ? C[m * c + j] : T(0);
            for (i64 k = 0; k < K; k++) s += A[k * ak + m * am] * B[k][j];
            C[m * c + j] = s;
        }
}

// C[m][n] = bias[n] + Σ_k A[m][k] · B[n][k], a tile of R by S sums.
template <int R, int S>
inline void inner_tile(i64 K, Anywhere A, const T* B, i64 b, const T* bias, T* C, i64 c) {
    Vec s[R][S] = {};
    const T* a[R];
    for (int i = 0; i < R; i++) a[i] = A[i];
    i64 k = 0;
    for (; k + N <= K; k += N) {
        Vec right[S];
        for (int j = 0; j < S; j++) right[j] = held(B + j * b + k);
        for (int i = 0; i < R; i++) {
            const Vec left = load(a[i] + k);
            for (int j = 0; j < S; j++) s[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < S; j++) {
            T total = sum(s[i][j]);
            for (i64 rest = k; rest < K; rest++) total += a[i][rest] * B[j * b + rest];
            C[i * c + j] = total + (bias ? bias[j] : T(0));
        }
}

template <int R, int S>
inline void inner_rows(i64 count, i64 K, Anywhere A, const T* B, i64 b, const T* bias, T* C, i64 c) {
    if (count == R) return inner_tile<R, S>(K, A, B, b, bias, C, c);
    if constexpr (R > 1) inner_rows<R - 1, S>(count, K, A, B, b, bias, C, c);
}

template <int S>
inline void inner_columns(i64 count, i64 M, i64 K, Anywhere A, const T* B, i64 b, const T* bias, T* C, i64 c) {
    if (count == S)
        for (Pieces p(M, TILE); p.more(); p.next())
            inner_rows<TILE, S>(p.size(), K, A.from(p.from), B, b, bias, C + p.from * c, c);
    else if constexpr (S > 1)
        inner_columns<S - 1>(count, M, K, A, B, b, bias, C, c);
}

void inner(i64 M, i64 columns, i64 K, Anywhere A, const T* B, i64 b, const T* bias, T* C, i64 c) {
    for (Pieces p(columns, 3); p.more(); p.next())
        inner_columns<3>(p.size(), M, K, A, B + p.from * b, b, bias ? bias + p.from : nullptr, C + p.from, c);
}

// ------------------------------------------------------------------------------------------------------------ a chain

constexpr int DEPTH = 32;

struct Memory {
    T* act[DEPTH + 1];     // [BLOCK][input of layer l], the last one the outputs
    const T* rows[DEPTH][BLOCK];  // where each sample's input of a linear layer is
    T* grad[DEPTH + 1];    // the same for gradients
    uint8_t* place[DEPTH]; // [BLOCK][cells][channels] where a window's largest pixel was
    T* forward[DEPTH];     // weights [kernel row][span][channels]
    T* bias[DEPTH];        // [channels]
    T* backward[DEPTH];    // weights [output][kernel row][stride]
    T* dweights[DEPTH];    // their gradient
    T* dbias[DEPTH];
    T* own_dweights[DEPTH];  // that of one sample, before it is clipped
    T* own_dbias[DEPTH];
    T *lines, *hit_value;
    int32_t* hit_at;

    Memory(const Layer* layers, i64 depth, Arena& arena) {
        i64 line = 0, hits = 0;
        for (i64 n = 0; n < depth; n++) {
            const Layer& l = layers[n];
            act[n] = arena.take<T>(BLOCK * l.input());
            grad[n] = arena.take<T>(BLOCK * l.input());
            for (i64 b = 0; b < BLOCK; b++) rows[n][b] = act[n] + b * l.input();
            if (!l.convolves()) continue;
            const i64 channels = up(l.cout, N), kernel = l.kernel_h * up(l.span(), N);
            place[n] = arena.take<uint8_t>(BLOCK * l.cells() * channels);
            forward[n] = arena.take<T>(l.kernel_h * l.span() * channels);
            bias[n] = arena.take<T>(channels);
            backward[n] = arena.take<T>(l.cout * kernel);
            dweights[n] = arena.take<T>(l.cout * kernel);
            dbias[n] = arena.take<T>(l.cout);
            own_dweights[n] = arena.take<T>(l.cout * kernel);
            own_dbias[n] = arena.take<T>(l.cout);
            const i64 needed = l.pool * l.pool * l.columns() * channels;
            line = needed > line ? needed : line;
            hits = l.cells() > hits ? l.cells() : hits;
        }
        act[depth] = arena.take<T>(BLOCK * layers[depth - 1].cout);
        grad[depth] = arena.take<T>(BLOCK * layers[depth - 1].cout);
        lines = arena.take<T>(line);
        hit_value = arena.take<T>(hits);
        hit_at = arena.take<int32_t>(hits);
    }
};

struct Chain {
    const Job& job;
    Memory at;
    const T* x = nullptr;

    Chain(const Job& job, Arena& arena) : job(job), at(job.layers, job.depth, arena) {
        for (i64 n = 0; n < job.depth; n++)  // borders stay zero for good
            std::memset(at.act[n], 0, sizeof(T) * BLOCK * job.layers[n].input());
    }

    // Bring the model's kernels into the orders in which they are read, and clear their gradients.
    void prepare(const T* model) {
        x = model;
        for (i64 n = 0; n < job.depth; n++) {
            const Layer& l = job.layers[n];
            if (!l.convolves()) continue;
            const i64 channels = up(l.cout, N), stride = up(l.span(), N);
            std::memset(at.forward[n], 0, sizeof(T) * l.kernel_h * l.span() * channels);
            std::memset(at.bias[n], 0, sizeof(T) * channels);
            std::memset(at.backward[n], 0, sizeof(T) * l.cout * l.kernel_h * stride);
            std::memset(at.dweights[n], 0, sizeof(T) * l.cout * l.kernel_h * stride);
            std::memset(at.dbias[n], 0, sizeof(T) * l.cout);
            if (l.bias >= 0) std::memcpy(at.bias[n], x + l.bias, sizeof(T) * l.cout);
            const T* w = x + l.weight;
            for (i64 o = 0; o < l.cout; o++)
                for (i64 c = 0; c < l.cin; c++)
                    for (i64 r = 0; r < l.kernel_h; r++)
                        for (i64 k = 0; k < l.kernel_w; k++, w++) {
                            at.forward[n][(r * l.span() + k * l.cin + c) * channels + o] = *w;
                            at.backward[n][(o * l.kernel_h + r) * stride + k * l.cin + c] = *w;
                        }
        }
    }

    // Copy a sample into the (padded) input of the first layer.
    void gather(i64 sample, i64 b) {
        const Layer& l = job.layers[0];
        const T* from = job.data + sample * job.size;
        T* to = at.act[0] + b * l.input();
        if (!l.convolves()) {  // it is read where it lies
            at.rows[0][b] = from;
            return;
        }
        for (i64 h = 0; h < l.height; h++)
            std::memcpy(to + (h + l.pad_h) * l.row() + l.pad_w * l.cin, from + h * l.width * l.cin, sizeof(T) * l.width * l.cin);
    }

    // Where the output pixel (h, w) of layer n lies in the input of the next: [h][w][c] with the border of a
    // convolution, or [c][h][w] as a linear layer wants it (then with `apart` elements between channels).
    struct Place {
        i64 first, row, column, apart, sample;
    };
    Place output(i64 n) const {
        const Layer& l = job.layers[n];
        if (n + 1 < job.depth && job.layers[n + 1].convolves()) {
            const Layer& next = job.layers[n + 1];
            return {next.pad_h * next.row() + next.pad_w * next.cin, next.row(), next.cin, 1, next.input()};
        }
        return {0, l.columns(), 1, l.cells(), l.cells() * l.cout};
    }

    APART void convolve(i64 n, i64 b) {
        const Layer& l = job.layers[n];
        const i64 channels = up(l.cout, N), rows = l.rows(), columns = l.columns(), length = columns * l.pool * channels;
        const Place to = output(n);
        const T* in = at.act[n] + b * l.input();
        T* out = at.act[n + 1] + b * to.sample;
        uint8_t* place = at.place[n] + b * l.cells() * channels;
        for (i64 h = 0; h < rows; h++) {
            for (i64 i = 0; i < l.pool; i++) {
                const T* from = in + (h * l.pool + i) * l.stride * l.row();
                i64 c = 0;
                for (; c + 2 * N <= channels; c += 2 * N)
                    output_row<2>(l, from, at.forward[n] + c, at.bias[n] + c, columns * l.pool, channels, at.lines + i * length + c);
                for (; c < channels; c += N)
                    output_row<1>(l, from, at.forward[n] + c, at.bias[n] + c, columns * l.pool, channels, at.lines + i * length + c);
            }
            // Before a linear layer: pool in place (a window is read before its cell is written), then transpose.
            T* pooled = to.apart == 1 ? out + to.first + h * to.row : at.lines;
            const auto pool = l.pool == 1 ? pool_row<1> : l.pool == 2 ? pool_row<2> : pool_row<0>;
            pool(at.lines, columns, channels, l.relu, l.cout, pooled, place + h * columns * channels, l.pool);
            for (i64 c = 0; to.apart > 1 && c < l.cout; c++)
                for (i64 w = 0; w < columns; w++) out[c * to.apart + h * columns + w] = pooled[w * l.cout + c];
        }
    }

    // From the gradient of layer n's output to those of its kernel and, but for the first layer, its input.
    APART void convolve_back(i64 n, i64 b, T* dweights, T* dbias) {
        const Layer& l = job.layers[n];
        const i64 channels = up(l.cout, N), stride = up(l.span(), N), rows = l.rows(), columns = l.columns();
        const int32_t down = static_cast<int32_t>(l.row() * l.pool * l.stride);
        const int32_t right = static_cast<int32_t>(l.cin * l.pool * l.stride);
        const Place from = output(n);
        const T* dout = at.grad[n + 1] + b * from.sample + from.first;
        const uint8_t* place = at.place[n] + b * l.cells() * channels;
        const T* in = at.act[n] + b * l.input();
        T* din = n > 0 ? at.grad[n] + b * l.input() : nullptr;
        if (din) std::memset(din, 0, sizeof(T) * l.input());
        int32_t shift[256] = {};
        for (i64 i = 0; i < l.pool * l.pool; i++)
            shift[i] = static_cast<int32_t>(((i / l.pool) * l.row() + (i % l.pool) * l.cin) * l.stride);
        for (i64 o = 0; o < l.cout; o++) {
            T* value = at.hit_value;
            int32_t* patch = at.hit_at;
            i64 count = 0;
            for (i64 h = 0; h < rows; h++) {
                const uint8_t* p = place + h * columns * channels + o;
                const T* d = dout + h * from.row + o * from.apart;
                int32_t first = static_cast<int32_t>(h) * down;
                for (i64 w = 0; w < columns; w++, first += right) {
                    const uint8_t where = p[w * channels];
                    value[count] = d[w * from.column];
                    patch[count] = first + shift[where];
                    count += where != DEAD;
                }
            }
            dbias[o] += total(value, count);
            const Hits hits = {count, value, patch};
            const i64 kernel = o * l.kernel_h * stride;
            channel(l, hits, in, dweights + kernel, din, at.backward[n] + kernel, stride);
        }
    }

    void linear(i64 n, i64 count) {
        const Layer& l = job.layers[n];
        T* out = at.act[n + 1];
        const T* bias = l.bias < 0 ? nullptr : x + l.bias;
        inner(count, l.cout, l.cin, Anywhere{at.rows[n]}, x + l.weight, l.cin, bias, out, l.cout);
        for (i64 i = 0; l.relu && i < count * l.cout; i++) out[i] = out[i] <= 0 ? T(0) : out[i];
    }

    void relu_back(i64 n, i64 count) {
        const Layer& l = job.layers[n];
        T* dout = at.grad[n + 1];
        for (i64 i = 0; l.relu && i < count * l.cout; i++) dout[i] = at.act[n + 1][i] <= 0 ? T(0) : dout[i];
    }

    void linear_weights(i64 n, i64 count, T* gradient, bool add) {
        const Layer& l = job.layers[n];
        const T* dout = at.grad[n + 1];
        outer(l.cout, l.cin, count, dout, l.cout, 1, Anywhere{at.rows[n]}, gradient + l.weight, l.cin, add);
        for (i64 o = 0; l.bias >= 0 && o < l.cout; o++) {
            T s = add ? gradient[l.bias + o] : T(0);
            for (i64 b = 0; b < count; b++) s += dout[b * l.cout + o];
            gradient[l.bias + o] = s;
        }
    }

    void linear_inputs(i64 n, i64 count) {
        const Layer& l = job.layers[n];
        const Even weights = {x + l.weight, l.cin};
        if (n > 0) outer(count, l.cin, l.cout, at.grad[n + 1], 1, l.cout, weights, at.grad[n], l.cin, false);
    }

    APART void loss(const i64* rows, const T* weights, T even, i64 count, Result& result) {
        const i64 width = job.layers[job.depth - 1].cout;
        for (i64 b = 0; b < count; b++) {
            const Outputs<1> outputs = {width, at.act[job.depth] + b * width, at.grad[job.depth] + b * width};
            job.head.add(rows[b], outputs, weights ? weights[b] : even, result);
        }
    }

    void forward(const i64* rows, i64 count) {
        for (i64 b = 0; b < count; b++) {
            gather(rows[b], b);
            for (i64 n = 0; n < job.depth && job.layers[n].convolves(); n++) convolve(n, b);
        }
        for (i64 n = 0; n < job.depth; n++)
            if (!job.layers[n].convolves()) linear(n, count);
    }

    void backward(i64 count, T* gradient, bool add) {
        i64 n = job.depth - 1;
        for (; n >= 0 && !job.layers[n].convolves(); n--) {
            relu_back(n, count);
            linear_weights(n, count, gradient, add);
            linear_inputs(n, count);
        }
        for (i64 b = 0; b < count && n >= 0; b++)
            for (i64 l = n; l >= 0; l--) convolve_back(l, b, at.dweights[l], at.dbias[l]);
    }

    // The same with every sample's gradient clipped. That of a linear layer is an outer product, whose norm is the
    // product of norms, so it is not made for one sample; that of a kernel is, in memory that all samples share.
    void clipped_backward(i64 count, T* gradient, bool add) {
        double square[BLOCK] = {};  // of the norm over all layers
        T factor[BLOCK];
        i64 last = job.depth - 1;  // becomes the last convolution
        for (; last >= 0 && !job.layers[last].convolves(); last--) {
            relu_back(last, count);
            linear_squares(last, count, square);
            linear_inputs(last, count);
        }
        for (i64 b = 0; b < count; b++) {
            for (i64 n = last; n >= 0; n--) square[b] += kernel_square(n, b);
            factor[b] = clip_factor(std::sqrt(square[b]));
            for (i64 n = last; n >= 0; n--) add_kernel(n, factor[b]);
        }
        for (i64 n = job.depth - 1; n > last; n--) {
            const i64 width = job.layers[n].cout;
            for (i64 b = 0; b < count; b++)
                for (i64 o = 0; o < width; o++) at.grad[n + 1][b * width + o] *= factor[b];
            linear_weights(n, count, gradient, add);
        }
    }

    // A gradient that is not finite must be seen: clipping would turn an infinite one into zeros.
    T clip_factor(double norm) const {
        if (!std::isfinite(norm)) return std::numeric_limits<T>::quiet_NaN();
        return norm > *job.clip ? static_cast<T>(*job.clip / norm) : T(1);
    }

    // Adds each sample's ‖δ‖²‖a‖², and ‖δ‖² for the bias.
    void linear_squares(i64 n, i64 count, double* square) const {
        const Layer& l = job.layers[n];
        for (i64 b = 0; b < count; b++) {
            const double delta = squares(at.grad[n + 1] + b * l.cout, l.cout), input = squares(at.rows[n][b], l.cin);
            square[b] += delta * (input + (l.bias >= 0));
        }
    }

    // A sample's gradient of a convolution, into memory of its own, and its squared norm.
    double kernel_square(i64 n, i64 b) {
        const Layer& l = job.layers[n];
        const i64 stride = up(l.span(), N), rows = l.cout * l.kernel_h;
        T *dweights = at.own_dweights[n], *dbias = at.own_dbias[n];
        std::memset(dweights, 0, sizeof(T) * rows * stride);
        std::memset(dbias, 0, sizeof(T) * l.cout);
        convolve_back(n, b, dweights, dbias);
        double square = l.bias >= 0 ? squares(dbias, l.cout) : T(0);
        for (i64 r = 0; r < rows; r++) square += squares(dweights + r * stride, l.span());
        return square;
    }

    void add_kernel(i64 n, T factor) {
        const Layer& l = job.layers[n];
        const i64 size = l.cout * l.kernel_h * up(l.span(), N);
        for (i64 i = 0; i < size; i += N)
            store(at.dweights[n] + i, load(at.dweights[n] + i) + all(factor) * load(at.own_dweights[n] + i));
        for (i64 o = 0; o < l.cout; o++) at.dbias[n][o] += factor * at.own_dbias[n][o];
    }

    // Bring the kernels' gradients back into torch's order.
    void finish(T* gradient) {
        for (i64 n = 0; n < job.depth; n++) {
            const Layer& l = job.layers[n];
            if (!l.convolves()) continue;
            const i64 stride = up(l.span(), N);
            T* w = gradient + l.weight;
            for (i64 o = 0; o < l.cout; o++)
                for (i64 c = 0; c < l.cin; c++)
                    for (i64 r = 0; r < l.kernel_h; r++)
                        for (i64 k = 0; k < l.kernel_w; k++, w++)
                            *w = at.dweights[n][(o * l.kernel_h + r) * stride + k * l.cin + c];
            if (l.bias >= 0) std::memcpy(gradient + l.bias, at.dbias[n], sizeof(T) * l.cout);
        }
    }

    void task(i64 i) {
        const i64 from = job.offset[i], to = job.offset[i + 1];
        T* gradient = job.gradient ? job.gradient + i * job.d : nullptr;
        const T even = job.clip ? T(1) : T(1) / T(to - from);
        Result result;
        prepare(job.x + job.model[i] * job.d);
        for (i64 b = from; b < to; b += BLOCK) {
            const i64 count = least(BLOCK, to - b);
            forward(job.rows + b, count);
            loss(job.rows + b, job.weights ? job.weights + b : nullptr, even, count, result);
            if (gradient) job.clip ? clipped_backward(count, gradient, b > from) : backward(count, gradient, b > from);
        }
        if (gradient && from == to) std::memset(gradient, 0, sizeof(T) * job.d);
        if (gradient) finish(gradient);
        job.value[i] = result.value;
        job.correct[i] = result.correct;
    }
};

}  // namespace

extern "C" {
int64_t scratch(const Layer* layers, int64_t depth) {
    Arena counting{nullptr};
    Memory memory(layers, depth, counting);
    return counting.used;
}
void run(const Job* job, char* memory) {
    Arena arena{memory};
    Chain chain(*job, arena);
    for (i64 i; (i = job->next->fetch_add(1)) < job->tasks;) chain.task(i);
}
}
