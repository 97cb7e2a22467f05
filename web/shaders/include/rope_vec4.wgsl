// rope4(own, other, angle, c, columns): column group c (of `columns` groups of 4) of a head, turned. `angle` is the first element of
// the position's row in the tables, bound as cos and sin: array<f32>. own = the head's group c; other = group rope_other(c, columns).
const PAIRS: u32 = 0u;   // 0: columns (i, i + D/2) rotate together, 1: (2i, 2i + 1)

fn rope_other(c: u32, columns: u32) -> u32 {
    return select((c + columns / 2u) % columns, c, PAIRS == 1u);
}

fn rope4(own: vec4f, other: vec4f, angle: u32, c: u32, columns: u32) -> vec4f {
    if (PAIRS == 1u) {
        let at = angle + 2u * c;
        return own * vec4f(cos[at], cos[at], cos[at + 1u], cos[at + 1u]) + own.yxwz * vec4f(-sin[at], sin[at], -sin[at + 1u], sin[at + 1u]);
    }
    let at = angle + 4u * (c % (columns / 2u));
    let side = select(1.0, -1.0, c < columns / 2u);
    return own * vec4f(cos[at], cos[at + 1u], cos[at + 2u], cos[at + 3u]) + side * other * vec4f(sin[at], sin[at + 1u], sin[at + 2u], sin[at + 3u]);
}
