//!include unit_4
//!include int8
// A load of 4 words of int8 weights (16 weights along K).
const WORDS: u32 = 4u;
alias Q = vec4u;
@group(0) @binding(1) var<storage, read> w_q: array<vec4u>;

// sum_k q_k * a_k, u already times UNPACK
fn dot_unit(q: Q, u: Unit) -> f32 {
    return dot_word(q.x, u[0]) + dot_word(q.y, u[1]) + dot_word(q.z, u[2]) + dot_word(q.w, u[3]);
}
