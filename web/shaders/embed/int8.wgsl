//!include step
//!include pair
// y[t, c] = (q[token[t], c] * s + b) * scale; history[slot, position] = token for rows that are not idle. int8 table:
// unsigned bytes, low byte first, a (s, b) pair for every GROUP columns; a thread makes the 4 columns of one word.
override WG: u32 = 64u;
const ROWS: u32 = 1u;
const GROUP: u32 = 32u;

struct Params {
    T: u32,
    V: u32,         // rows of the table; a token beyond it gives NaN, so that it is seen
    C: u32,
    context: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> w_q: array<u32>;            // [V, C/4]
@group(0) @binding(1) var<storage, read> w_sb: array<u32>;           // [V, C/GROUP] pairs
@group(0) @binding(2) var<storage, read_write> y: array<f32>;        // [T, C]
@group(0) @binding(3) var<storage, read_write> history: array<u32>;  // [slots, context]
@group(0) @binding(4) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let unit = wg.x * WG + local;
    let units = params.C / 4u;
    if (unit == 0u && !is_idle(row.flags) && row.position < params.context) {
        history[row.slot * params.context + row.position] = row.token;
    }
    if (unit >= units) {
        return;
    }
    let known = row.token < params.V;
    let token = select(0u, row.token, known);
    let word = w_q[token * units + unit];
    var pair = pair_at(token * (params.C / GROUP) + unit * 4u / GROUP);
    if (!known) {
        pair = vec2f(bitcast<f32>(0x7fc00000u | (row.token & 0x3fffffu)));
    }
    let at = wg.y * params.C + unit * 4u;
    for (var i = 0u; i < 4u; i++) {
        y[at + i] = (f32((word >> (8u * i)) & 0xffu) * pair.x + pair.y) * params.scale;
    }
}
