//!include unit_1
// Dense weights stored as f32; a unit is 4 weights along K.
alias Q = vec4f;
const UNPACK = vec4f(1.0);
@group(0) @binding(1) var<storage, read> w: array<vec4f>;

fn load_unit(row: u32, unit: u32, units: u32) -> Q {
    return w[row * units + unit];
}

fn unpack(q: Q) -> Unit {
    return Unit(q);
}

// Weights 4 i .. 4 i + 3 of row `row`, for the tiles of a matmul; quads = K / 4.
fn weights_at(row: u32, i: u32, quads: u32) -> vec4f {
    return unpack(w[row * quads + i])[0];
}

fn pair_of(row: u32, unit: u32, units: u32) -> vec2f {
    return vec2f(1.0, 0.0);
}

fn meet(pair: vec2f, codes: Unit, u: Unit, total: f32) -> f32 {
    return dot_units(codes, u);
}
