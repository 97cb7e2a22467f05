//!include quantised
// int4 words: 8 nibbles, low one first. Nibbles are masked where they stand and the activations carry the power of two
// (exact), which saves the shift of each weight.
const UNPACK = vec4f(1.0, 0.0625, 0.00390625, 0.000244140625);

fn codes_at(q: u32) -> vec4f {
    return vec4f(vec4i(vec4u(q) & vec4u(0xfu, 0xf0u, 0xf00u, 0xf000u)));
}
