// The body of the matmul family without barriers: a thread makes 4 rows (the components of its sums) of COLUMNS columns.
// Activations of the 4 rows are named one by one: software adapters keep what an index reaches in memory.
override WG: u32 = 16u;
const COLUMNS: u32 = 4u;

fn unit_of(t: u32, unit: u32) -> Unit {
    return read_unit((min(t, params.T - 1u) * params.x_stride + params.x_offset) / 4u + unit * UNIT);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u) {
    let first = (wg.x * WG + local) * COLUMNS;
    if (first >= params.N) {
        return;
    }
    let t = wg.y * 4u;
    let units = params.K / (4u * UNIT);
    var sums: array<vec4f, COLUMNS>;
    for (var unit = 0u; unit < units; unit++) {
        var a = unit_of(t, unit);
        var b = unit_of(t + 1u, unit);
        var c = unit_of(t + 2u, unit);
        var d = unit_of(t + 3u, unit);
        let total = vec4f(sum_unit(a), sum_unit(b), sum_unit(c), sum_unit(d));
        a = scale_unit(a, UNPACK);
        b = scale_unit(b, UNPACK);
        c = scale_unit(c, UNPACK);
        d = scale_unit(d, UNPACK);
        for (var j = 0u; j < COLUMNS; j++) {
            let pair = pair_of(first + j, unit, units);
            let w = unpack(load_unit(first + j, unit, units));
            sums[j] += pair.x * vec4f(dot_units(w, a), dot_units(w, b), dot_units(w, c), dot_units(w, d)) + pair.y * total;
        }
    }
    for (var j = 0u; j < COLUMNS; j++) {
        let n = first + j;
        for (var r = 0u; r < 4u; r++) {
            if (n < params.N && t + r < params.T) {
                y[(t + r) * params.N + n] = finish(t + r, n, sums[j][r]);
            }
        }
    }
}
