//!include unit_1
// Dense weights stored as f32; a unit is 4 weights along K.
alias Q = vec4f;
const UNPACK = vec4f(1.0);
@group(0) @binding(1) var<storage, read> w: array<vec4f>;

fn load_unit(row: u32, unit: u32, units: u32) -> Q {
    return w[row * units + unit];
}

fn weights_of(q: Q) -> vec4f {
    return q;
}

fn meet(row: u32, unit: u32, units: u32, q: Q, u: Unit, total: f32) -> f32 {
    return dot(u[0], weights_of(q));
}
