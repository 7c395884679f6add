// Standard normal numbers from ChaCha20 (RFC 8439: counter from 0, nonce zero), added to rows of numbers.
//
// GROUP blocks are made together, and number [place][block] of a group belongs to one block in each lane. Of a block's
// sixteen words, four make two numbers by Box and Muller's method: two words the radius, two the angle. This order does
// not depend on how wide the processor's vectors are; privacy/noise.py has it in numpy.
//
// Each number is a function of its row's key and its place: results do not depend on the number of threads, nor on
// the other rows. Threads draw pieces of rows from a shared counter.

#include "vectors.h"

namespace {

constexpr i64 GROUP = 16, NUMBERS = 8 * GROUP;  // blocks of a group, and the numbers that they make
constexpr i64 PIECE = 256 * NUMBERS;            // numbers of a task
constexpr double TWO32 = 4294967296.0;

typedef uint32_t Words __attribute__((vector_size(BYTES)));
constexpr int BLOCKS = BYTES / sizeof(uint32_t), DOUBLES = BYTES / sizeof(double);
typedef double Real __attribute__((vector_size(BYTES)));
typedef int64_t Long __attribute__((vector_size(BYTES)));
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

inline Real real(Half words) { return __builtin_convertvector(words, Real); }

template <int COUNT>
inline Real polynomial(Real x, const double (&c)[COUNT]) {
    Real s = c[COUNT - 1] - Real{};
    for (int i = COUNT - 2; i >= 0; i--) s = s * x + c[i];
    return s;
}

// −2 ln(x) of normal positive numbers, to the last digits (fdlibm's method).
inline Real minus_two_log(Real x) {
    constexpr double SERIES[] = {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                 1.479819860511658591e-01};
    Long bits;
    std::memcpy(&bits, &x, sizeof x);
    // x = m 2^e with m between √½ and √2: the border's fraction is subtracted before the exponent is cut off.
    const Long shifted = bits - 0x3fe6a09e667f3bcdLL, exponent = shifted >> 52;
    bits -= exponent << 52;
    Real m;
    std::memcpy(&m, &bits, sizeof m);
    const Real e = __builtin_convertvector(exponent, Real), f = m - 1, s = f / (2 + f), z = s * s;
    const Real half = 0.5 * f * f, rest = s * (half + z * polynomial(z, SERIES));
    const Real log = e * 6.93147180369123816490e-01 + (f - (half - (rest + e * 1.90821492927058770002e-10)));
    return -2 * log;
}

// −2 ln(u), u between 0 and 1 in steps of 2^-64 from two words of each lane.
inline Real squared_radius(const uint32_t* words) {
    const Real low = real(read<Half>(words)) + 0.5, high = real(read<Half>(words + GROUP)) * TWO32;
    return minus_two_log((high + low) * (1 / TWO32 / TWO32));
}

// A point on the circle, from two words of each lane: 62 bits are an angle within ±π/4; of the other two, one mirrors
// the point at the diagonal and one turns it by π.
inline void circle(const uint32_t* words, Real& x, Real& y) {
    constexpr double SINE[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03,  -1.98412698298579493134e-04,
                               2.75573137070700676789e-06,  -2.50507602534068634195e-08, 1.58969099521155010221e-10};
    constexpr double COSINE[] = {4.16666666666666019037e-02,  -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                 -2.75573143513906633035e-07, 2.08757232129817482790e-09,  -1.13596475577881948265e-11};
    const Half top = read<Half>(words + GROUP);
    const Real low = real(read<Half>(words)) + 0.5, high = real(top & 0x3fffffff) * TWO32;
    const Real angle = ((high + low) * (4 / TWO32 / TWO32) - 0.5) * 1.57079632679489661923, square = angle * angle;
    const Real sine = angle + angle * square * polynomial(square, SINE);
    const Real cosine = 1 - (0.5 * square - square * square * polynomial(square, COSINE));
    const Long bits = __builtin_convertvector(top, Long);
    const Long mirrored = (bits & 0x40000000) != 0, turned = (bits & 0x80000000) != 0;
    const Real one = mirrored ? sine : cosine, other = mirrored ? cosine : sine;
    x = turned ? -one : one, y = turned ? -other : other;
}

typedef T Scaled __attribute__((vector_size(DOUBLES * sizeof(T))));

inline void write(Real numbers, T* out) {
    const Scaled value = __builtin_convertvector(numbers, Scaled);
    std::memcpy(out, &value, sizeof value);
}

// The numbers of a group, times the scale.
APART void group(const uint32_t* key, uint32_t counter, double scale, T* out) {
    constexpr i64 PAIRS = 4;  // of a block
    uint32_t words[16 * GROUP];
    double radius[PAIRS * GROUP];
    for (i64 l = 0; l < GROUP; l += BLOCKS) chacha(key, counter + static_cast<uint32_t>(l), words + l);
    for (i64 i = 0; i < PAIRS * GROUP; i += DOUBLES) {
        const Real square = squared_radius(words + i / GROUP * 4 * GROUP + i % GROUP);
        std::memcpy(radius + i, &square, sizeof square);
    }
    for (double& r : radius) r = std::sqrt(r) * scale;
    for (i64 i = 0; i < PAIRS * GROUP; i += DOUBLES) {
        const i64 pair = i / GROUP, l = i % GROUP;
        Real x, y;
        circle(words + (4 * pair + 2) * GROUP + l, x, y);
        write(read<Real>(radius + i) * x, out + 2 * pair * GROUP + l);
        write(read<Real>(radius + i) * y, out + (2 * pair + 1) * GROUP + l);
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
