// Losses and gradients of residual networks with batch or group normalisation, for many models at once.
//
// The network: a convolution, then blocks of two convolutions around which the input is added, then the mean over all
// pixels and a linear layer. A normalisation follows every convolution.
//
// What is kept of the forward pass are the convolutions' outputs z and the blocks' outputs y. Anything between is made
// again from z when the backward pass needs it, which is cheaper than to bring it back from memory.
//
// Samples lie in the lanes of vectors (lanes.h). In a last vector that is not full the other lanes stay zero, because
// the factors of every normalisation are zero there. Statistics are merged from the lanes' in double precision.
//
// Each task (one model on one list of rows) is computed by one thread in one order: results do not depend on the
// number of threads. Threads draw tasks from a shared counter.

#include "convolution.h"
#include "heads.h"

namespace {

constexpr double EPSILON = 1e-5, MOMENTUM = 0.1;  // native/blocks.py recognises no others
constexpr int LAYERS = 64;

// A convolution and its normalisation, as native/blocks.py writes them.
struct Layer {
    i64 kernel, stride, cin, cout, height, width, weight;
    i64 groups;  // of the normalisation; 0: over the batch
    i64 scale, shift;  // offsets in the parameters
    i64 statistics;  // offset in the buffers of the running mean, variance and count

    Convolution convolution() const {
        const i64 rows = (height - 1) / stride + 1, columns = (width - 1) / stride + 1;
        return {kernel, stride, {cin, height, width, 1}, {cout, rows, columns, 0}};
    }
};

struct Block {
    i64 first, second, skip;  // layers; skip = -1: the input is added as it is
};

struct Job {
    const Layer* layers;
    i64 depth;
    const Block* blocks;
    i64 count;           // of blocks
    i64 outputs, weight, bias;  // of the linear layer; bias = -1: none
    i64 tasks;
    const i64* model;    // [tasks] which row of x and buffers
    const i64* offset;   // [tasks + 1] into rows and weights
    const T* x;          // [models][d]
    i64 d;
    T* buffers;          // [models][b], or null
    i64 b;
    i64 training;        // normalise with the statistics of the batch, and update those in the buffers
    const T* data;       // [samples][channels][height][width]
    Head head;
    const i64* rows;     // the samples of all tasks, one task after the other
    const T* weights;    // of the samples in the loss, or null for 1 / (samples of the task)
    T* gradient;         // [tasks][d], or null if only values are wanted
    T* value;            // [tasks] the weighted sum of the losses
    i64* correct;        // [tasks] how many answers are right
    i64 vectors;         // that the samples of one pass fill at most
    std::atomic<i64>* next;
};

Vec relu(Vec v) { return v <= Vec{} ? Vec{} : v; }  // of NaN it is NaN
Shape bordered(Shape s) { return {s.channels, s.height, s.width, 1}; }

void clear_border(const Shape& s, Vec* image) {
    for (i64 g = 0; g < s.groups(); g++, image += s.plane())
        for (i64 h = -1; h <= s.height; h++) {
            const bool whole = h < 0 || h == s.height;
            std::memset(image + s.at(h, -1), 0, sizeof(Vec) * (whole ? s.row() : Q));
            std::memset(image + s.at(h, s.width), 0, sizeof(Vec) * Q);
        }
}

// What is kept of a layer. The factors and sums are [vectors][channels].
struct Kept {
    Convolution conv;
    T *forward, *backward, *dweights;  // kernels in the orders of lanes.h
    Vec* z;                            // [vectors][output]
    Vec *mean, *inverse;               // 1 / standard deviation
    Vec *scale, *shift;                // the normalised output is scale · z + shift
    Vec *first, *second, *pivot;       // sums over the pixels; z is taken from the pivot on
    Vec *of_dy, *of_z, *constant;      // dz = of_dy · dy + of_z · (z − mean) + constant

    Kept() = default;
    Kept(const Layer& l, i64 vectors, Arena& arena) : conv(l.convolution()) {
        for (T** kernel : {&forward, &backward, &dweights}) *kernel = arena.take<T>(conv.weights());
        z = arena.take<Vec>(vectors * conv.out.size());
        for (Vec** v : {&mean, &inverse, &scale, &shift, &first, &second, &pivot, &of_dy, &of_z, &constant})
            *v = arena.take<Vec>(vectors * l.cout);
    }
    const Vec* output(i64 v) const { return z + v * conv.out.size(); }
};

struct Memory {
    Kept layer[LAYERS];
    Vec* y[LAYERS];  // [vectors][output with a border]: of the first layer, then of each block
    Vec* image;      // [vectors][input with a border]
    Vec *dy, *dx, *inner;  // [vectors][output]
    Vec *hidden, *dz;      // one image with a border
    Vec* scratch;          // of a convolution
    Vec *mean, *dmean, *scores, *dscores;  // [vectors][channels], [vectors][outputs]

    Memory(const Job& job, Arena& arena) {
        i64 largest = 0, padded = 0, most = 0;
        for (i64 n = 0; n < job.depth; n++) {
            layer[n] = Kept(job.layers[n], job.vectors, arena);
            const Shape out = layer[n].conv.out;
            largest = out.size() > largest ? out.size() : largest;
            padded = bordered(out).size() > padded ? bordered(out).size() : padded;
            most = layer[n].conv.scratch() > most ? layer[n].conv.scratch() : most;
        }
        image = arena.take<Vec>(job.vectors * layer[0].conv.in.size());
        for (i64 k = 0; k <= job.count; k++)
            y[k] = arena.take<Vec>(job.vectors * bordered(layer[k ? job.blocks[k - 1].second : 0].conv.out).size());
        for (Vec** v : {&dy, &dx, &inner}) *v = arena.take<Vec>(job.vectors * largest);
        for (Vec** v : {&hidden, &dz}) *v = arena.take<Vec>(padded);
        scratch = arena.take<Vec>(most);
        const i64 channels = layer[job.count ? job.blocks[job.count - 1].second : 0].conv.out.channels;
        for (Vec** v : {&mean, &dmean}) *v = arena.take<Vec>(job.vectors * channels);
        for (Vec** v : {&scores, &dscores}) *v = arena.take<Vec>(job.vectors * job.outputs);
    }
};

struct Network {
    const Job& job;
    Memory at;
    const T* x = nullptr;  // the task's parameters
    T* buffers = nullptr;  // and running statistics
    T* gradient = nullptr;
    i64 samples = 0, vectors = 0;  // of this pass

    Network(const Job& job, Arena& arena) : job(job), at(job, arena) {}

    i64 lanes(i64 v) const { return least(N, samples - v * N); }
    Shape shape(i64 k) const { return bordered(at.layer[k ? job.blocks[k - 1].second : 0].conv.out); }  // of y[k]
    Vec* output(i64 k, i64 v) const { return at.y[k] + v * shape(k).size(); }

    // ------------------------------------------------------------------------------------------------ normalisation

    // Add row h to the sums of z and z² over the pixels, both taken from the first pixel on against cancellation.
    void tally(Kept& l, i64 v, i64 h) {
        const Shape s = l.conv.out;
        const i64 from = v * s.channels;
        const Vec* z = l.output(v) + s.at(h, 0);
        for (i64 c = 0; c < s.channels; c += Q, z += s.plane()) {
            Vec first[Q], second[Q], pivot[Q];
            for (int q = 0; q < Q; q++) {
                pivot[q] = h ? l.pivot[from + c + q] : z[q];
                first[q] = h ? l.first[from + c + q] : Vec{};
                second[q] = h ? l.second[from + c + q] : Vec{};
            }
            for (i64 w = 0; w < s.row(); w += Q)
                for (int q = 0; q < Q; q++) {
                    const Vec d = z[w + q] - pivot[q];
                    first[q] += d, second[q] += d * d;
                }
            for (int q = 0; q < Q; q++)
                l.pivot[from + c + q] = pivot[q], l.first[from + c + q] = first[q], l.second[from + c + q] = second[q];
        }
    }

    // Mean and sum of squared deviations of parts, merged.
    struct Moments {
        double count = 0, mean = 0, squares = 0;

        void add(double n, double m, double q) {
            const double d = m - mean, total = count + n;
            mean += d * (n / total), squares += q + d * d * (count * n / total), count = total;
        }
    };
    void merge(Moments& m, const Kept& l, i64 at, i64 lane) const {
        const double n = static_cast<double>(l.conv.out.height * l.conv.out.width), s = l.first[at][lane];
        m.add(n, l.pivot[at][lane] + s / n, l.second[at][lane] - s * (s / n));
    }

    void set(const Layer& n, Kept& l, i64 v, i64 lane, i64 c, double mean, double variance) {
        const i64 at = v * n.cout + c;
        const double inverse = 1 / std::sqrt(variance + EPSILON), scale = x[n.scale + c] * inverse;
        l.mean[at][lane] = static_cast<T>(mean), l.inverse[at][lane] = static_cast<T>(inverse);
        l.scale[at][lane] = static_cast<T>(scale), l.shift[at][lane] = static_cast<T>(x[n.shift + c] - mean * scale);
    }

    // From the sums of all samples to the factors of the normalisation.
    APART void normalise(const Layer& n, Kept& l) {
        for (Vec* factors : {l.mean, l.inverse, l.scale, l.shift})
            std::memset(factors, 0, sizeof(Vec) * vectors * n.cout);
        for (i64 c = 0; c < n.cout && !n.groups; c++) {
            double mean = 0, variance = 0;
            if (job.training) {
                Moments m;
                for (i64 v = 0; v < vectors; v++)
                    for (i64 lane = 0; lane < lanes(v); lane++) merge(m, l, v * n.cout + c, lane);
                mean = m.mean, variance = m.squares / m.count;
                if (buffers) remember(n, c, m);
            } else {
                mean = buffers[n.statistics + c], variance = buffers[n.statistics + n.cout + c];
            }
            set(n, l, 0, 0, c, mean, variance);
            for (Vec* factors : {l.mean, l.inverse, l.scale, l.shift})
                for (i64 v = vectors - 1; v >= 0; v--)
                    for (i64 lane = 0; lane < lanes(v); lane++) factors[v * n.cout + c][lane] = factors[c][0];
        }
        if (!n.groups && job.training && buffers) {
            T& batches = buffers[n.statistics + 2 * n.cout];
            batches = std::nearbyint(batches) + 1;  // an averaged count
        }
        const i64 size = n.groups ? n.cout / n.groups : 0;
        for (i64 c = 0; c < n.cout && n.groups; c += size)
            for (i64 v = 0; v < vectors; v++)
                for (i64 lane = 0; lane < lanes(v); lane++) {
                    Moments m;
                    for (i64 i = c; i < c + size; i++) merge(m, l, v * n.cout + i, lane);
                    for (i64 i = c; i < c + size; i++) set(n, l, v, lane, i, m.mean, m.squares / m.count);
                }
    }

    void remember(const Layer& n, i64 c, const Moments& m) {
        T &mean = buffers[n.statistics + c], &variance = buffers[n.statistics + n.cout + c];
        mean = static_cast<T>((1 - MOMENTUM) * mean + MOMENTUM * m.mean);
        variance = static_cast<T>((1 - MOMENTUM) * variance + MOMENTUM * m.squares / (m.count - 1));
    }

    // Add row h to the sums of dy and dy · (z − mean) over the pixels.
    void tally_back(Kept& l, i64 v, i64 h, const Vec* dy) {
        const Shape s = l.conv.out;
        const i64 from = v * s.channels;
        const Vec* z = l.output(v);
        for (i64 c = 0, row = s.at(h, 0); c < s.channels; c += Q, row += s.plane()) {
            Vec first[Q], second[Q], mean[Q];
            for (int q = 0; q < Q; q++) {
                mean[q] = l.mean[from + c + q];
                first[q] = h ? l.first[from + c + q] : Vec{};
                second[q] = h ? l.second[from + c + q] : Vec{};
            }
            for (i64 w = row; w < row + s.row(); w += Q)
                for (int q = 0; q < Q; q++) first[q] += dy[w + q], second[q] += dy[w + q] * (z[w + q] - mean[q]);
            for (int q = 0; q < Q; q++) l.first[from + c + q] = first[q], l.second[from + c + q] = second[q];
        }
    }

    // From those sums to the gradients of scale and shift, and to the factors of the backward pass.
    APART void normalise_back(const Layer& n, Kept& l) {
        const i64 size = n.groups ? n.cout / n.groups : 1;
        const double pixels = static_cast<double>(l.conv.out.height * l.conv.out.width);
        for (i64 c = 0; c < n.cout; c++) {
            double first = 0, second = 0;
            for (i64 v = 0; v < vectors; v++)
                for (i64 lane = 0, i = v * n.cout + c; lane < lanes(v); lane++)
                    first += l.first[i][lane], second += static_cast<double>(l.second[i][lane]) * l.inverse[i][lane];
            gradient[n.shift + c] += static_cast<T>(first), gradient[n.scale + c] += static_cast<T>(second);
            if (n.groups) continue;
            const double inverse = l.inverse[c][0], factor = x[n.scale + c] * inverse, count = pixels * samples;
            const Vec of_z = all(static_cast<T>(-factor * inverse * second / count));
            const Vec constant = all(static_cast<T>(-factor * first / count));
            for (i64 v = 0, i = c; v < vectors; v++, i += n.cout) {
                const Mask dead = l.inverse[i] == Vec{};  // lanes without a sample
                l.of_dy[i] = l.scale[i], l.of_z[i] = dead ? Vec{} : of_z, l.constant[i] = dead ? Vec{} : constant;
            }
        }
        for (i64 v = 0; v < vectors && n.groups; v++)
            for (i64 c = 0; c < n.cout; c += size) {
                Vec first = {}, second = {};
                const i64 from = v * n.cout + c;
                for (i64 i = 0; i < size; i++)
                    first += l.first[from + i] * x[n.scale + c + i], second += l.second[from + i] * x[n.scale + c + i];
                const Vec inverse = l.inverse[from] / static_cast<T>(pixels * size);
                const Vec square = l.inverse[from] * l.inverse[from];
                for (i64 i = from; i < from + size; i++)
                    l.of_dy[i] = l.scale[i], l.of_z[i] = -inverse * square * second, l.constant[i] = -inverse * first;
            }
    }

    // -------------------------------------------------------------------------------------------------- forward pass

    APART void convolve(i64 n, const Vec* in, i64 v) {
        Kept& l = at.layer[n];
        Vec* z = l.z + v * l.conv.out.size();
        const i64 height = l.conv.out.height, together = l.conv.rows_together();
        const bool tallies = job.training || job.layers[n].groups;
        for (i64 h = 0; h < height; h += together) {
            l.conv.forward_rows(in, l.forward, h, z, at.scratch);
            for (i64 r = h; r < least(h + together, height) && tallies; r++) tally(l, v, r);
        }
    }

    // ReLU of the normalised output.
    APART void activate(const Kept& l, i64 v, Vec* out) const {
        const Shape s = l.conv.out, to = bordered(s);
        const Vec *z = l.output(v), *scale = l.scale + v * s.channels, *shift = l.shift + v * s.channels;
        clear_border(to, out);
        for (i64 g = 0; g < s.groups(); g++)
            for (i64 h = 0; h < s.height; h++) {
                Vec* row = out + g * to.plane() + to.at(h, 0);
                for (i64 w = 0; w < s.row(); w += Q, z += Q)
                    for (int q = 0; q < Q; q++) row[w + q] = relu(scale[g * Q + q] * z[q] + shift[g * Q + q]);
            }
    }

    // The output of block k: ReLU of the second layer's normalised output plus what skips the block.
    APART void join(i64 k, i64 v) const {
        const Block& block = job.blocks[k];
        const Kept &l = at.layer[block.second], &other = at.layer[block.skip < 0 ? block.second : block.skip];
        const Shape s = l.conv.out, to = bordered(s);
        const Vec *in = output(k, v), *z = l.output(v), *side = other.output(v);
        Vec* out = output(k + 1, v);
        clear_border(to, out);
        for (i64 g = 0; g < s.groups(); g++) {
            Vec scale[Q], shift[Q], other_scale[Q];
            for (int q = 0; q < Q; q++) {
                const i64 c = v * s.channels + g * Q + q;
                scale[q] = l.scale[c], shift[q] = l.shift[c], other_scale[q] = other.scale[c];
                if (block.skip >= 0) shift[q] += other.shift[c];
            }
            for (i64 h = 0; h < s.height; h++) {
                const i64 row = g * to.plane() + to.at(h, 0);
                for (i64 w = 0; w < s.row(); w += Q, z += Q, side += Q)
                    for (int q = 0; q < Q; q++) {
                        const Vec skipped = block.skip < 0 ? in[row + w + q] : other_scale[q] * side[q];
                        out[row + w + q] = relu(scale[q] * z[q] + shift[q] + skipped);
                    }
            }
        }
    }

    // Copy samples into the lanes of the first layer's input.
    void gather(const i64* rows, i64 v) {
        const Shape s = at.layer[0].conv.in;
        Vec* image = at.image + v * s.size();
        std::memset(image, 0, sizeof(Vec) * s.size());
        for (i64 lane = 0; lane < lanes(v); lane++) {
            const T* from = job.data + rows[v * N + lane] * s.channels * s.height * s.width;
            for (i64 c = 0; c < s.channels; c++)
                for (i64 h = 0; h < s.height; h++) {
                    T* to = reinterpret_cast<T*>(image + c / Q * s.plane() + s.at(h, 0) + c % Q) + lane;
                    for (i64 w = 0; w < s.width; w++) to[w * Q * N] = *from++;
                }
        }
    }

    void forward(const i64* rows) {
        for (i64 v = 0; v < vectors; v++) gather(rows, v), convolve(0, at.image + v * at.layer[0].conv.in.size(), v);
        normalise(job.layers[0], at.layer[0]);
        for (i64 v = 0; v < vectors; v++) activate(at.layer[0], v, output(0, v));
        for (i64 k = 0; k < job.count; k++) {
            const Block& b = job.blocks[k];
            for (i64 v = 0; v < vectors; v++) {
                convolve(b.first, output(k, v), v);
                if (b.skip >= 0) convolve(b.skip, output(k, v), v);
            }
            normalise(job.layers[b.first], at.layer[b.first]);
            if (b.skip >= 0) normalise(job.layers[b.skip], at.layer[b.skip]);
            for (i64 v = 0; v < vectors; v++) {
                activate(at.layer[b.first], v, at.hidden);
                convolve(b.second, at.hidden, v);
            }
            normalise(job.layers[b.second], at.layer[b.second]);
            for (i64 v = 0; v < vectors; v++) join(k, v);
        }
        for (i64 v = 0; v < vectors; v++) classify(v);
    }

    // The mean over the pixels and the linear layer.
    void classify(i64 v) {
        const Shape s = shape(job.count);
        const Vec* y = output(job.count, v);
        Vec *mean = at.mean + v * s.channels, *scores = at.scores + v * job.outputs;
        for (i64 c = 0; c < s.channels; c++) {
            Vec total = {};
            for (i64 h = 0; h < s.height; h++)
                for (i64 w = 0; w < s.width; w++) total += y[c / Q * s.plane() + s.at(h, w) + c % Q];
            mean[c] = total / static_cast<T>(s.height * s.width);
        }
        for (i64 j = 0; j < job.outputs; j++) {
            scores[j] = all(job.bias < 0 ? T(0) : x[job.bias + j]);
            for (i64 c = 0; c < s.channels; c++) scores[j] += mean[c] * x[job.weight + j * s.channels + c];
        }
    }

    void loss(const i64* rows, const T* weights, T even, Result& result) {
        std::memset(at.dscores, 0, sizeof(Vec) * vectors * job.outputs);
        for (i64 b = 0; b < samples; b++) {
            const i64 first = b / N * job.outputs;
            const T* s = reinterpret_cast<const T*>(at.scores + first) + b % N;
            T* d = reinterpret_cast<T*>(at.dscores + first) + b % N;
            job.head.add(rows[b], Outputs<N>{job.outputs, s, d}, weights ? weights[b] : even, result);
        }
    }

    // ------------------------------------------------------------------------------------------------- backward pass

    // From the gradient of the scores to that of the last block's output.
    void classify_back() {
        const Shape s = shape(job.count);
        const i64 pixels = s.height * s.width;
        for (i64 v = 0; v < vectors; v++) {
            const Vec *mean = at.mean + v * s.channels, *d = at.dscores + v * job.outputs;
            Vec* dmean = at.dmean + v * s.channels;
            std::memset(dmean, 0, sizeof(Vec) * s.channels);
            for (i64 j = 0; j < job.outputs; j++) {
                if (job.bias >= 0) gradient[job.bias + j] += sum(d[j]);
                for (i64 c = 0; c < s.channels; c++) {
                    gradient[job.weight + j * s.channels + c] += sum(d[j] * mean[c]);
                    dmean[c] += d[j] * x[job.weight + j * s.channels + c];
                }
            }
            Vec* dy = at.dy + v * s.channels * pixels;
            for (i64 c = 0; c < s.channels; c += Q)
                for (i64 p = 0; p < pixels; p++)
                    for (int q = 0; q < Q; q++) *dy++ = dmean[c + q] / static_cast<T>(pixels);
        }
    }

    // dy = 0 where ReLU gave 0, in row h; y has a border.
    static void mask(const Shape& s, i64 h, const Vec* y, Vec* dy) {
        const Shape from = bordered(s);
        for (i64 g = 0; g < s.groups(); g++) {
            const Vec* row = y + g * from.plane() + from.at(h, 0);
            Vec* d = dy + g * s.plane() + s.at(h, 0);
            for (i64 i = 0; i < s.row(); i++) d[i] = row[i] <= Vec{} ? Vec{} : d[i];
        }
    }

    // dz from dy, with a border.
    APART void differentiate(const Kept& l, i64 v, const Vec* dy) {
        const Shape s = l.conv.out, to = bordered(s);
        const Vec* z = l.output(v);
        clear_border(to, at.dz);
        for (i64 g = 0; g < s.groups(); g++) {
            Vec of_dy[Q], of_z[Q], constant[Q], mean[Q];
            for (int q = 0; q < Q; q++) {
                const i64 c = v * s.channels + g * Q + q;
                of_dy[q] = l.of_dy[c], of_z[q] = l.of_z[c], constant[q] = l.constant[c], mean[q] = l.mean[c];
            }
            for (i64 h = 0; h < s.height; h++) {
                Vec* row = at.dz + g * to.plane() + to.at(h, 0);
                for (i64 w = 0; w < s.row(); w += Q, z += Q, dy += Q)
                    for (int q = 0; q < Q; q++)
                        row[w + q] = of_dy[q] * dy[q] + (of_z[q] * (z[q] - mean[q]) + constant[q]);
            }
        }
    }

    // From the gradient of y[k], through its ReLU, to the factors of the normalisation before it.
    void enter(i64 k) {
        const i64 main = k ? job.blocks[k - 1].second : 0, side = k ? job.blocks[k - 1].skip : -1;
        const Shape s = at.layer[main].conv.out;
        for (i64 v = 0; v < vectors; v++)
            for (i64 h = 0; h < s.height; h++) {
                Vec* dy = at.dy + v * s.size();
                mask(s, h, output(k, v), dy);
                tally_back(at.layer[main], v, h, dy);
                if (side >= 0) tally_back(at.layer[side], v, h, dy);
            }
        normalise_back(job.layers[main], at.layer[main]);
        if (side >= 0) normalise_back(job.layers[side], at.layer[side]);
    }

    void block_back(i64 k) {
        const Block& b = job.blocks[k];
        Kept &first = at.layer[b.first], &second = at.layer[b.second];
        const Shape in = {first.conv.in.channels, first.conv.in.height, first.conv.in.width, 0}, out = second.conv.out;
        enter(k + 1);
        for (i64 v = 0; v < vectors; v++) {
            Vec* inner = at.inner + v * out.size();
            differentiate(second, v, at.dy + v * out.size());
            activate(first, v, at.hidden);
            second.conv.weight_gradient(at.hidden, at.dz, second.dweights, at.scratch);
            const i64 together = second.conv.rows_together();
            for (i64 h = 0; h < out.height; h += together) {
                second.conv.backward_rows(at.dz, second.backward, h, out, inner, false, at.scratch);
                for (i64 r = h; r < least(h + together, out.height); r++)
                    mask(out, r, at.hidden, inner), tally_back(first, v, r, inner);
            }
        }
        normalise_back(job.layers[b.first], first);
        Vec* dx = b.skip < 0 ? at.dy : at.dx;
        for (i64 v = 0; v < vectors; v++) {
            differentiate(first, v, at.inner + v * out.size());
            layer_back(first, in, output(k, v), dx + v * in.size(), b.skip < 0);
            if (b.skip < 0) continue;
            differentiate(at.layer[b.skip], v, at.dy + v * out.size());
            layer_back(at.layer[b.skip], in, output(k, v), dx + v * in.size(), true);
        }
        if (b.skip >= 0) std::swap(at.dy, at.dx);
    }

    void layer_back(Kept& l, const Shape& in, const Vec* x, Vec* dx, bool add) {
        l.conv.weight_gradient(x, at.dz, l.dweights, at.scratch);
        for (i64 h = 0; h < in.height; h += l.conv.rows_together())
            l.conv.backward_rows(at.dz, l.backward, h, in, dx, add, at.scratch);
    }

    void backward() {
        classify_back();
        for (i64 k = job.count - 1; k >= 0; k--) block_back(k);
        enter(0);
        Kept& l = at.layer[0];
        for (i64 v = 0; v < vectors; v++) {
            differentiate(l, v, at.dy + v * l.conv.out.size());
            l.conv.weight_gradient(at.image + v * l.conv.in.size(), at.dz, l.dweights, at.scratch);
        }
    }

    // --------------------------------------------------------------------------------------------------------- tasks

    void prepare() {
        for (i64 n = 0; n < job.depth; n++) {
            Kept& l = at.layer[n];
            l.conv.pack(x + job.layers[n].weight, l.forward, gradient ? l.backward : nullptr);
            if (gradient) std::memset(l.dweights, 0, sizeof(T) * l.conv.weights());
        }
        if (gradient) std::memset(gradient, 0, sizeof(T) * job.d);
    }

    void task(i64 i) {
        const i64 from = job.offset[i], to = job.offset[i + 1];
        const T even = T(1) / T(to - from);
        Result result;
        x = job.x + job.model[i] * job.d;
        buffers = job.buffers ? job.buffers + job.model[i] * job.b : nullptr;
        gradient = job.gradient ? job.gradient + i * job.d : nullptr;
        prepare();
        for (i64 b = from; b < to; b += samples) {
            samples = least(job.vectors * N, to - b), vectors = (samples + N - 1) / N;
            forward(job.rows + b);
            loss(job.rows + b, job.weights ? job.weights + b : nullptr, even, result);
            if (gradient) backward();
        }
        for (i64 n = 0; n < job.depth && gradient; n++)
            at.layer[n].conv.unpack(at.layer[n].dweights, gradient + job.layers[n].weight);
        job.value[i] = result.value;
        job.correct[i] = result.correct;
    }
};

}  // namespace

extern "C" {
int64_t lanes() { return N; }
int64_t scratch(const Job* job) {
    Arena counting{nullptr};
    Memory memory(*job, counting);
    return counting.used;
}
void run(const Job* job, char* memory) {
    Arena arena{memory};
    Network network(*job, arena);
    for (i64 i; (i = job->next->fetch_add(1)) < job->tasks;) network.task(i);
}
}
