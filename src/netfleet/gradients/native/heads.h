// The losses behind the last linear layer, for chain.cpp and residual.cpp.
//
// Each adds the loss of one sample to the value and its right answers to the count, and leaves the gradient of its
// outputs.

#pragma once

#include "vectors.h"

namespace {

enum Loss : i64 { CROSS_ENTROPY, BCE, MSE };  // native/heads.py has the same numbers

// One sample's outputs and where their gradient goes; neighbours are STEP elements apart.
template <int STEP>
struct Outputs {
    i64 count;
    const T* at;
    T* gradient;

    T operator[](i64 i) const { return at[i * STEP]; }
    T& d(i64 i) const { return gradient[i * STEP]; }
};

// What the samples of a task add up to.
struct Result {
    T value = 0;      // of the losses, weighted
    i64 correct = 0;  // samples under cross-entropy, labels under BCE, nothing under MSE
};

// Softmax and negative log-likelihood.
template <int STEP>
inline void cross_entropy(const Outputs<STEP>& s, i64 label, T weight, Result& result) {
    T top = s[0], total = 0;
    for (i64 c = 1; c < s.count; c++) top = s[c] > top ? s[c] : top;
    for (i64 c = 0; c < s.count; c++) total += s.d(c) = std::exp(s[c] - top);
    result.value += weight * (std::log(total) - (s[label] - top));
    const T scale = weight / total;
    for (i64 c = 0; c < s.count; c++) s.d(c) *= scale;
    s.d(label) -= weight;
    i64 first = 0;  // of the largest scores
    while (first < s.count && s[first] != top) first++;
    result.correct += first == label;
}

// Sigmoid and negative log-likelihood, the mean over the labels. Written with exp(−|s|), which does not overflow, and
// without the difference 1 − sigmoid(s), which would lose its digits.
template <int STEP>
inline void binary_cross_entropy(const Outputs<STEP>& s, const T* targets, T weight, Result& result) {
    const T share = weight / static_cast<T>(s.count);
    T total = 0;
    for (i64 i = 0; i < s.count; i++) {
        const bool positive = s[i] > 0;
        const T other = positive ? 1 - targets[i] : targets[i];  // the target of the less likely side
        const T size = std::abs(s[i]), small = std::exp(-size), d = small / (1 + small) - other;
        total += other * size + std::log1p(small);
        s.d(i) = share * (positive ? -d : d);
        result.correct += positive == (targets[i] > T(0.5));
    }
    result.value += share * total;
}

// The mean of the squared errors.
template <int STEP>
inline void squared_error(const Outputs<STEP>& s, const T* targets, T weight, Result& result) {
    const T share = weight / static_cast<T>(s.count);
    T total = 0;
    for (i64 i = 0; i < s.count; i++) {
        const T error = s[i] - targets[i];
        total += error * error;
        s.d(i) = 2 * share * error;
    }
    result.value += share * total;
}

// A loss and what the outputs are compared with.
struct Head {
    i64 loss;
    const void* targets;  // [samples] classes (i64) under cross-entropy, else [samples][outputs] numbers (T)

    template <int STEP>
    void add(i64 sample, const Outputs<STEP>& outputs, T weight, Result& result) const {
        if (loss == CROSS_ENTROPY)
            return cross_entropy(outputs, static_cast<const i64*>(targets)[sample], weight, result);
        const T* own = static_cast<const T*>(targets) + sample * outputs.count;
        if (loss == BCE) return binary_cross_entropy(outputs, own, weight, result);
        squared_error(outputs, own, weight, result);
    }
};

}  // namespace
