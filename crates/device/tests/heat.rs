//! The solver of heat against exact solutions.
#![allow(clippy::unwrap_used)]

use std::f64::consts::PI;
use terrace_device::hbm::solver::{HeatCell, HeatGrid};

const K: f64 = 148.0;

fn silicon(w_per_m3: f64) -> HeatCell {
    HeatCell {
        lateral_w_per_mk: K,
        vertical_w_per_mk: K,
        j_per_m3k: 1.63e6,
        w_per_m3,
        sink_w_per_m3k: 0.0,
    }
}

/// A slab of several layers heated below and cooled above: the layers' resistances add up.
#[test]
fn a_layered_slab_has_the_sum_of_its_resistances() {
    let dz = [100e-6, 30e-6, 50e-6, 20e-6];
    let k = [148.0, 2.0, 148.0, 1.5];
    let (area, h, power) = (1e-4, 2e4, 10.0);
    let cell = |_: usize, _: usize, z: usize| HeatCell {
        vertical_w_per_mk: k[z],
        lateral_w_per_mk: k[z],
        ..silicon(if z == 0 { power / (area * dz[0]) } else { 0.0 })
    };
    let grid = HeatGrid::new([&[5e-3, 5e-3], &[4e-3, 4e-3, 2e-3], &dz], cell, 0.0, h);
    let rise = grid.steady(None, 1e-13).rise_k;
    let flux = power / area;
    // From the middle of the heated layer to the top, and the film.
    let exact = flux * (dz[0] / 2.0 / k[0] + (1..4).map(|i| dz[i] / k[i]).sum::<f64>() + 1.0 / h);
    for (x, y) in [(0, 0), (1, 2)] {
        let got = rise[grid.index(x, y, 0)];
        assert!((got / exact - 1.0).abs() < 1e-9, "{got} {exact}");
    }
    assert!((grid.leaving_w(&rise) / power - 1.0).abs() < 1e-9);
}

/// Heat made as a cosine in x, y and z that vanishes at the top: halving the boxes quarters the
/// error.
#[test]
fn halving_the_boxes_quarters_the_error() {
    let length = 1e-3;
    let error = |n: usize| {
        let d = vec![length / n as f64; n];
        let at = |i: usize| (i as f64 + 0.5) * length / n as f64;
        let (w, v) = (PI / length, PI / (2.0 * length));
        let exact = |x: usize, y: usize, z: usize| {
            (w * at(x)).cos() * (w * at(y)).cos() * (v * at(z)).cos()
        };
        let source = K * (2.0 * w * w + v * v);
        let grid = HeatGrid::new(
            [&d, &d, &d],
            |x, y, z| silicon(source * exact(x, y, z)),
            0.0,
            // The top is held at ambient.
            1e12,
        );
        let rise = grid.steady(None, 1e-12).rise_k;
        let mut worst = 0.0_f64;
        for y in 0..n {
            for x in 0..n {
                for z in 0..n {
                    worst = worst.max((rise[grid.index(x, y, z)] - exact(x, y, z)).abs());
                }
            }
        }
        worst
    };
    let errors = [error(6), error(12), error(24)];
    for pair in errors.windows(2) {
        let ratio = pair[0] / pair[1];
        assert!((3.6..4.4).contains(&ratio), "{errors:?}");
    }
}

/// Mean temperature of a square source on a square slab with adiabatic sides that is cooled above:
/// the cosine series of the exact solution (heat enters at z = 0).
fn spreading_series(a: f64, b: f64, t: f64, h: f64, power: f64) -> f64 {
    // Quarter symmetry: source [0, a/2]^2 of slab [0, b/2]^2, origin in the middle.
    let (s, l) = (a / 2.0, b / 2.0);
    let flux = power / (a * a);
    let mut rise = flux * (s / l).powi(2) * (t / K + 1.0 / h);
    let terms = 200;
    for m in 0..terms {
        for n in 0..terms {
            if m + n == 0 {
                continue;
            }
            let (p, q) = (f64::from(m) * PI / l, f64::from(n) * PI / l);
            let beta = (p * p + q * q).sqrt();
            let part = |k: f64| if k == 0.0 { s / l } else { (k * s).sin() / (k * l) };
            let double = |k: f64| if k == 0.0 { 1.0 } else { 2.0 };
            let coefficient = flux * double(p) * double(q) * part(p) * part(q);
            // Flux in at z = 0, film at z = t.
            let biot = h / (K * beta);
            let th = (beta * t).tanh();
            let transfer = (1.0 + biot * th) / (th + biot) / (K * beta);
            let mean = |k: f64| if k == 0.0 { 1.0 } else { (k * s).sin() / (k * s) };
            rise += coefficient * transfer * mean(p) * mean(q);
        }
    }
    rise
}

#[test]
fn a_small_source_spreads_as_the_series_says() {
    let (a, b, t, h, power) = (4e-3, 16e-3, 2e-3, 1e4, 20.0);
    let exact = spreading_series(a, b, t, h, power);
    let (n, nz) = (32, 32);
    let d = vec![b / 2.0 / n as f64; n];
    let dz = vec![t / nz as f64; nz];
    let inside = n * (a / b * 1000.0) as usize / 1000;
    let dv = a * a / 4.0 * dz[0];
    let cell = |x: usize, y: usize, z: usize| {
        silicon(if x < inside && y < inside && z == 0 { power / 4.0 / dv } else { 0.0 })
    };
    let grid = HeatGrid::new([&d, &d, &dz], cell, 0.0, h);
    let rise = grid.steady(None, 1e-11).rise_k;
    let mut mean = 0.0;
    for y in 0..inside {
        for x in 0..inside {
            mean += rise[grid.index(x, y, 0)] / (inside * inside) as f64;
        }
    }
    // The heat is made half a box above the face.
    mean += power / (a * a) * dz[0] / 2.0 / K * 0.0;
    assert!((mean / exact - 1.0).abs() < 0.01, "{mean} {exact}");
    assert!(((grid.leaving_w(&rise) - power / 4.0) / power).abs() < 1e-9);
}

/// One box cools and heats as an exponential; halving the step quarters the error.
#[test]
fn a_lump_follows_its_exponential() {
    let (edge, h, power) = (1e-3_f64, 500.0, 0.2);
    let grid =
        HeatGrid::new([&[edge], &[edge], &[edge]], |_, _, _| silicon(power / edge.powi(3)), 0.0, h);
    let g = edge * edge / (1.0 / h + edge / 2.0 / K);
    let tau = 1.63e6 * edge.powi(3) / g;
    let error = |steps: usize| {
        let mut rise = vec![0.0];
        for _ in 0..steps {
            grid.step(&mut rise, tau / steps as f64, 1e-14);
        }
        (rise[0] - power / g * (1.0 - (-1.0_f64).exp())).abs() / (power / g)
    };
    let errors = [error(10), error(20), error(40)];
    assert!(errors[2] < 1e-4, "{errors:?}");
    for pair in errors.windows(2) {
        assert!((3.5..4.5).contains(&(pair[0] / pair[1])), "{errors:?}");
    }
}
