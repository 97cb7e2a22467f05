//!include step
// y[t, c] = w[token[t], c] * scale; history[slot, position] = token for rows that are not idle. f16 or bf16 table, two
// values a word, low half first, rows padded to a word; a thread makes two columns.
override WG: u32 = 64u;
const ROWS: u32 = 1u;
const BF16: u32 = 0u;   // 0: f16, 1: bf16

struct Params {
    T: u32,
    V: u32,         // rows of the table; a token beyond it gives NaN, so that it is seen
    C: u32,
    context: u32,
    scale: f32,
}
@group(0) @binding(0) var<storage, read> w: array<u32>;              // [V, ceil(C/2)]
@group(0) @binding(1) var<storage, read_write> y: array<f32>;        // [T, C]
@group(0) @binding(2) var<storage, read_write> history: array<u32>;  // [slots, context]
@group(0) @binding(3) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let row = step[wg.y];
    let unit = wg.x * WG + local;
    let units = (params.C + 1u) / 2u;
    if (unit == 0u && !is_idle(row.flags) && row.position < params.context) {
        history[row.slot * params.context + row.position] = row.token;
    }
    if (unit >= units) {
        return;
    }
    var pair = vec2f(bitcast<f32>(0x7fc00000u | (row.token & 0x3fffffu)));
    if (row.token < params.V) {
        let word = w[row.token * units + unit];
        pair = unpack2x16float(word);
        if (BF16 == 1u) {
            pair = vec2f(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
        }
    }
    let at = wg.y * params.C + 2u * unit;
    y[at] = pair.x * params.scale;
    if (2u * unit + 1u < params.C) {
        y[at + 1u] = pair.y * params.scale;
    }
}
