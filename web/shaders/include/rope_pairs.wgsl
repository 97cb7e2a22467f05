// Which columns of a head rotate together: pair i of D/2 is (i, i + D/2) when PAIRS is 0 ("half"), (2i, 2i + 1) when 1 ("pairs").
const PAIRS: u32 = 0u;

fn rope_first(i: u32) -> u32 {
    return select(i, 2u * i, PAIRS == 1u);
}

fn rope_second(i: u32, half: u32) -> u32 {
    return select(i + half, 2u * i + 1u, PAIRS == 1u);
}

// (a, b) turned by the angle whose cosine and sine are given.
fn rope_turn(a: f32, b: f32, cosine: f32, sine: f32) -> vec2f {
    return vec2f(a * cosine - b * sine, b * cosine + a * sine);
}
