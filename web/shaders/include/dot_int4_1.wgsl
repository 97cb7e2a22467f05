//!include unit_2
//!include int4
// A load of 1 word of int4 weights: 8 weights along K.
const WORDS: u32 = 1u;
alias Q = u32;
@group(0) @binding(1) var<storage, read> w_q: array<u32>;

// The codes of a load; activations that meet them carry UNPACK.
fn unpack(q: Q) -> Unit {
    return Unit(codes_at(q), codes_at(q >> 16u));
}

// Weights 4 i .. 4 i + 3 of row `row`, for the tiles of a matmul; quads = K / 4.
fn weights_at(row: u32, i: u32, quads: u32) -> vec4f {
    let pair = pair_at((row * quads + i) * 4u / GROUP);
    return codes_at(w_q[(row * quads + i) / 2u] >> (16u * (i % 2u))) * UNPACK * pair.x + pair.y;
}
