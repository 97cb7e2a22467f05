//!include step
// y[t, c] = w[token[t], c] * scale; history[slot, position] = token for rows that are not idle. Dense f32 table.
override WG: u32 = 64u;
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    V: u32,         // rows of the table; a token beyond it gives NaN, so that it is seen
    C: u32,
    context: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> w: array<f32>;              // [V, C]
@group(0) @binding(1) var<storage, read_write> y: array<f32>;        // [T, C]
@group(0) @binding(2) var<storage, read_write> history: array<u32>;  // [slots, context]
@group(0) @binding(3) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let c = wg.x * WG + local;
    if (c == 0u && !is_idle(row.flags) && row.position < params.context) {
        history[row.slot * params.context + row.position] = row.token;
    }
    if (c >= params.C) {
        return;
    }
    if (row.token < params.V) {
        y[wg.y * params.C + c] = w[row.token * params.C + c] * params.scale;
    } else {
        y[wg.y * params.C + c] = bitcast<f32>(0x7fc00000u | (row.token & 0x3fffffu));
    }
}
