// Experiment of branch card.
#pragma once

#ifndef CARD_VARIANT
#define CARD_VARIANT 0
#endif

namespace gdn_cuda::gdn {
constexpr int kCardBase = 1;      // tf32 as on main
constexpr int kCardFirst = 2;     // exponents of keys before q k^T
constexpr int kCardNoDecay = 4;   // wrong: T without decays
constexpr int kCardNoDiagonal = 8;  // wrong: no substitution
constexpr int kCardNoBelow = 16;  // wrong: no products below the diagonal
constexpr int kCardNoGram = 32;  // wrong: no k k^T
constexpr int kCardEarly = 64;  // decays and the block on the diagonal before the barrier
constexpr int kCardWide = 128;  // fp16 for long keys too
constexpr int kCardRegisters = 256;
constexpr int kCardScales = 512;  // scales of keys with the exponents
constexpr bool card(int bit) { return (CARD_VARIANT & bit) != 0; }
}  // namespace gdn_cuda::gdn
