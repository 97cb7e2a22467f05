//!include unit_2
//!include int4
// A load of 1 word of int4 weights (8 weights along K).
const WORDS: u32 = 1u;
alias Q = u32;
@group(0) @binding(1) var<storage, read> w_q: array<u32>;

// sum_k q_k * a_k, u already times UNPACK
fn dot_unit(q: Q, u: Unit) -> f32 {
    return dot_word(q, u[0], u[1]);
}
