//!include step
//!include rope_pairs
// y[t, h, (a, b)] = x[t, h, (a, b)] turned by the angle of (position[t], pair); cosines and sines come from tables made on the host.
override WG: u32 = 64u;
const ROWS: u32 = 1u;

struct Params {
    T: u32,
    heads: u32,
    head_dim: u32,
    context: u32,    // rows of the tables
    x_stride: u32,
    x_offset: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>;        // [T, heads * head_dim] in rows of x_stride
@group(0) @binding(1) var<storage, read> cos: array<f32>;      // [context, head_dim/2]
@group(0) @binding(2) var<storage, read> sin: array<f32>;      // [context, head_dim/2]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;  // [T, heads * head_dim]
@group(0) @binding(4) var<uniform> step: array<StepRow, ROWS>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let half = params.head_dim / 2u;
    let pair = wg.x * WG + local;
    if (pair >= params.heads * half) {
        return;
    }
    let i = pair % half;
    let head = pair / half * params.head_dim;
    let angle = min(step[wg.y].position, params.context - 1u) * half + i;
    let source = wg.y * params.x_stride + params.x_offset + head;
    let goal = wg.y * params.heads * params.head_dim + head;
    let turned = rope_turn(x[source + rope_first(i)], x[source + rope_second(i, half)], cos[angle], sin[angle]);
    y[goal + rope_first(i)] = turned.x;
    y[goal + rope_second(i, half)] = turned.y;
}
