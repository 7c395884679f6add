// Standard normal numbers from ChaCha20 (RFC 8439: counter from 0, nonce zero), added to rows of numbers.
//
// GROUP blocks are made together, and number [place][block] of a group belongs to one block in each lane. Of a block's
// sixteen words, three at a time make two numbers by Box and Muller's method: two words the radius, one the angle; the
// last word is not used. This order does not depend on how wide the processor's vectors are; privacy/noise.py has it in
// numpy.
//
// Each number is a function of its row's key and its place: results do not depend on the number of threads, nor on
// the other rows. Threads draw pieces of rows from a shared counter.

#include "vectors.h"

namespace {

constexpr i64 GROUP = 16, PAIRS = 5;         // blocks of a group, and the pairs of numbers that each makes
constexpr i64 NUMBERS = 2 * PAIRS * GROUP;  // of a group
constexpr i64 PIECE = 256 * NUMBERS;        // numbers of a task

typedef uint32_t Words __attribute__((vector_size(BYTES)));
constexpr int BLOCKS = BYTES / sizeof(uint32_t), DOUBLES = BYTES / sizeof(double);
typedef double Real __attribute__((vector_size(BYTES)));
typedef uint64_t Bits __attribute__((vector_size(BYTES)));
typedef uint32_t Half __attribute__((vector_size(BYTES / 2)));  // as many words as there are doubles in a vector
static_assert(GROUP % BLOCKS == 0 && GROUP % DOUBLES == 0, "a group is made of whole vectors");

struct Job {
    i64 rows, d;
    T* out;               // [rows][apart], of which d are used
    i64 apart;
    const uint8_t* keys;  // [rows][32]
    const double* scale;  // [rows]
    std::atomic<i64>* next;

    i64 pieces() const { return (d + PIECE - 1) / PIECE; }
};

template <typename V, typename E>
inline V read(const E* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// ------------------------------------------------------------------------------------------------------------ ChaCha20

inline void turn(Words& a, Words& b, int bits) {
    a ^= b;
    a = (a << bits) | (a >> (32 - bits));
}

inline void quarter(Words& a, Words& b, Words& c, Words& d) {
    a += b, turn(d, a, 16);
    c += d, turn(b, c, 12);
    a += b, turn(d, a, 8);
    c += d, turn(b, c, 7);
}

// BLOCKS blocks from a counter on, word w of block l at out[w * GROUP + l].
void chacha(const uint32_t* key, uint32_t counter, uint32_t* out) {
    constexpr uint32_t CONSTANTS[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    uint32_t counters[BLOCKS];
    for (int l = 0; l < BLOCKS; l++) counters[l] = counter + static_cast<uint32_t>(l);
    Words start[16] = {}, v[16];
    for (int i = 0; i < 4; i++) start[i] += CONSTANTS[i];
    for (int i = 0; i < 8; i++) start[4 + i] += key[i];
    start[12] = read<Words>(counters);
    for (int i = 0; i < 16; i++) v[i] = start[i];
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++) quarter(v[i], v[4 + i], v[8 + i], v[12 + i]);
        for (int i = 0; i < 4; i++) quarter(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4]);
    }
    for (int i = 0; i < 16; i++) {
        const Words word = v[i] + start[i];
        std::memcpy(out + i * GROUP, &word, sizeof word);
    }
}

// ----------------------------------------------------------------------------------------------------- normal numbers

template <typename To, typename From>
inline To as(From from) {
    return read<To>(&from);
}

inline Bits widened(const uint32_t* words) { return __builtin_convertvector(read<Half>(words), Bits); }

template <int COUNT>
inline Real polynomial(Real x, const double (&c)[COUNT]) {
    Real s = c[COUNT - 1] - Real{};
    for (int i = COUNT - 2; i >= 0; i--) s = s * x + c[i];
    return s;
}

// −2 ln(x) of normal positive numbers, nearly to the last digit (fdlibm's method).
inline Real minus_two_log(Real x) {
    constexpr double SERIES[] = {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                 1.479819860511658591e-01};
    constexpr uint64_t ROOT = 0x3fe6a09e667f3bcd;  // √½: x = m 2^e with m between √½ and √2
    const Bits bits = as<Bits>(x), exponent = (bits - ROOT + (uint64_t{1024} << 52)) >> 52;  // e + 1024
    const Real e = as<Real>(exponent | 0x4330000000000000) - (0x1p52 + 1024);  // a whole number below 2^52 behind 2^52
    const Real f = as<Real>(bits - ((exponent - 1024) << 52)) - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f;
    const Real log = e * 6.93147180559945309417e-01 + (f - (half - s * (half + z * polynomial(z, SERIES))));
    return -2 * log;
}

// −2 ln(u), u between 0 and 1 in steps of 2^-64 from two words of each lane.
inline Real squared_radius(const uint32_t* words) {
    const Real low = as<Real>(widened(words) | 0x4330000000000000) - (0x1p52 - 0.5);
    const Real high = as<Real>(widened(words + GROUP) | 0x4530000000000000) - 0x1p84;
    return minus_two_log((high + low) * 0x1p-64);
}

// A point on the circle around 0, from a word of each lane: 30 bits are an angle within ±π/4; of the other two, one
// mirrors the point at the diagonal and one turns it by π.
inline void circle(Real radius, const uint32_t* words, Real& x, Real& y) {
    constexpr double SINE[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03,  -1.98412698298579493134e-04,
                               2.75573137070700676789e-06,  -2.50507602534068634195e-08, 1.58969099521155010221e-10};
    constexpr double COSINE[] = {4.16666666666666019037e-02,  -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                 -2.75573143513906633035e-07, 2.08757232129817482790e-09,  -1.13596475577881948265e-11};
    const Bits word = widened(words);
    const Real whole = as<Real>((word & 0x3fffffff) | 0x4330000000000000) - 0x1p52, fraction = whole - (0x1p29 - 0.5);
    const Real angle = fraction * (0x1p-30 * 1.57079632679489661923), square = angle * angle;
    const Real sine = angle + angle * square * polynomial(square, SINE);
    const Real cosine = 1 - (0.5 * square - square * square * polynomial(square, COSINE));
    const Real turned = as<Real>(as<Bits>(radius) ^ ((word & 0x80000000) << 32));
    const auto mirrored = (word & 0x40000000) != 0;
    x = turned * (mirrored ? sine : cosine), y = turned * (mirrored ? cosine : sine);
}

typedef T Scaled __attribute__((vector_size(DOUBLES * sizeof(T))));

inline void write(Real numbers, T* out) {
    const Scaled value = __builtin_convertvector(numbers, Scaled);
    std::memcpy(out, &value, sizeof value);
}

// The numbers of a group, times the scale.
APART void group(const uint32_t* key, uint32_t counter, double scale, T* out) {
    uint32_t words[16 * GROUP];
    double radius[PAIRS * GROUP];
    for (i64 l = 0; l < GROUP; l += BLOCKS) chacha(key, counter + static_cast<uint32_t>(l), words + l);
    for (i64 i = 0; i < PAIRS * GROUP; i += DOUBLES) {
        const Real square = squared_radius(words + i / GROUP * 3 * GROUP + i % GROUP);
        std::memcpy(radius + i, &square, sizeof square);
    }
    for (double& r : radius) r = std::sqrt(r) * scale;
    for (i64 i = 0; i < PAIRS * GROUP; i += DOUBLES) {
        const i64 pair = i / GROUP, l = i % GROUP;
        Real x, y;
        circle(read<Real>(radius + i), words + (3 * pair + 2) * GROUP + l, x, y);
        write(x, out + 2 * pair * GROUP + l);
        write(y, out + (2 * pair + 1) * GROUP + l);
    }
}

void piece(const Job& job, i64 row, i64 from) {
    uint32_t key[8];
    std::memcpy(key, job.keys + 32 * row, sizeof key);
    T* out = job.out + row * job.apart;
    T made[NUMBERS];
    for (const i64 to = least(from + PIECE, job.d); from < to; from += NUMBERS) {
        group(key, static_cast<uint32_t>(from / NUMBERS * GROUP), job.scale[row], made);
        for (i64 i = 0; i < least(NUMBERS, to - from); i++) out[from + i] += made[i];
    }
}

}  // namespace

extern "C" {
int64_t scratch() { return 0; }
void run(const Job* job, char*) {
    const i64 pieces = job->pieces();
    for (i64 i; (i = job->next->fetch_add(1)) < job->rows * pieces;) piece(*job, i / pieces, i % pieces * PIECE);
}
}
