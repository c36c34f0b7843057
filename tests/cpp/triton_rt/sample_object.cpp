// SPDX-License-Identifier: Apache-2.0
// Compiled to an object that test_loaded_object.cpp loads: constants, data that holds addresses,
// zeroed data and the calls of libc's functions.
#include <cstddef>
#include <cstdint>

extern "C" {

void* memcpy(void*, const void*, size_t);
double fmod(double, double);

extern const int32_t sample_squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
int32_t sample_counter;  // zero at first
int32_t sample_start = 40;
const int32_t* sample_pointer = &sample_squares[3];

int32_t sample_square(int32_t i) { return sample_squares[i & 7]; }
int32_t sample_through_pointer() { return *sample_pointer; }
int32_t sample_count() { return ++sample_counter + sample_start; }
double sample_remainder(double a, double b) { return fmod(a, b); }
void sample_copy(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }
}
