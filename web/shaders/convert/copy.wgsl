//!include quant_source
// Dense rows as they are: f32 -> f32, f16 -> f16, bf16 -> bf16. A row is padded to whole words; a thread writes one word.
const SIZE: u32 = 4u;    // bytes an element
override WG: u32 = 64u;

struct Params {
    src: u32,       // byte offset of the first block in the staging buffer
    rows: u32,
    columns: u32,
    dst_row: u32,   // destination row of row 0 of the tensor
    first: u32,     // row of the tensor that stands at src
    head_dim: u32,  // 0: rows keep their order
}
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> w: array<u32>;  // [dst rows, ceil(columns * SIZE / 4)]
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    let unit = (wg.y * grid.x + wg.x) * WG + local;
    let words = (params.columns * SIZE + 3u) / 4u;
    if (unit >= params.rows * words) {
        return;
    }
    let row = unit / words;
    let c = unit % words * 4u;
    let at = params.src + row * params.columns * SIZE + c;
    let out = target_row(row) * words + c / 4u;
    if (c + 4u <= params.columns * SIZE) {
        w[out] = word_at(at);
    } else {
        w[out] = half_at(at);
    }
}
