//! npb-cg, as cg.c: the smallest eigenvalue of a random sparse matrix by inverse iteration, each
//! system solved by 25 steps of conjugate gradients (RNR-94-007, section 2.2.3; sizes, iterations
//! and eigenvalues of the classes: NPB 3.4). Verification decides the exit status.
//!
//!     rustc -O -g cg.rs
//!     terrace crash run -- ./cg S

mod npb;
mod terrace_crash;

use npb::{draw, SharedNumbers, Team};
use std::ops::Range;
use std::sync::atomic::{AtomicI32, Ordering};
use terrace_crash::{cache_line_write_back, write_back_invalidate_cache, CrashRegion};

const INNER: usize = 25;
const CONDITION: f64 = 0.1;

struct Class {
    rows: usize,
    drawn: usize,
    iterations: i32,
    shift: f64,
    zeta: f64,
}

impl Class {
    const fn new(rows: usize, drawn: usize, iterations: i32, shift: f64, zeta: f64) -> Self {
        Self { rows, drawn, iterations, shift, zeta }
    }
}

const S: Class = Class::new(1400, 7, 15, 10.0, 8.597_177_507_864_8);
const W: Class = Class::new(7000, 8, 15, 12.0, 10.362_595_087_124);
const A: Class = Class::new(14_000, 11, 15, 20.0, 17.130_235_054_029);
const B: Class = Class::new(75_000, 13, 75, 60.0, 22.712_745_482_631);

#[derive(Default)]
struct SparseMatrix {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl SparseMatrix {
    /// The sum of w_i v_i v_i' over sparse vectors v_i, and (condition - shift) I.
    fn new(class: &Class) -> Self {
        let rows = class.rows;
        let (mut random, power) = (npb::SEED, rows.next_power_of_two());
        draw(&mut random); // the benchmark's first number is not used
        let mut vectors: Vec<Vec<(usize, f64)>> = Vec::with_capacity(rows);
        let mut users = vec![Vec::new(); rows];
        for i in 0..rows {
            let mut vector: Vec<(usize, f64)> = Vec::new();
            while vector.len() < class.drawn {
                let number = draw(&mut random);
                let place = (draw(&mut random) * power as f64) as usize;
                if place < rows && vector.iter().all(|(at, _)| *at != place) {
                    vector.push((place, number));
                }
            }
            match vector.iter_mut().find(|(at, _)| *at == i) {
                Some(own) => own.1 = 0.5,
                None => vector.push((i, 0.5)),
            }
            vector.iter().for_each(|(at, number)| users[*at].push((i, *number)));
            vectors.push(vector);
        }
        let ratio = CONDITION.powf(1.0 / rows as f64);
        let mut weight = vec![1.0; rows];
        (1..rows).for_each(|i| weight[i] = weight[i - 1] * ratio);
        let (mut matrix, mut sums) = (Self::default(), vec![None; rows]);
        for (i, users) in users.iter().enumerate() {
            let mut row = Vec::new();
            for (vector, own) in users {
                let scaled = own * weight[*vector];
                for (column, number) in &vectors[*vector] {
                    let sum: &mut Option<f64> = &mut sums[*column];
                    if sum.is_none() {
                        row.push(*column);
                    }
                    let shift = CONDITION - class.shift;
                    let diagonal = if *column == i && *vector == i { shift } else { 0.0 };
                    *sum = Some(sum.unwrap_or(0.0) + scaled * number + diagonal);
                }
            }
            row.sort_unstable();
            matrix.starts.push(matrix.values.len());
            matrix.columns.extend(row.iter().map(|column| *column as u32));
            matrix.values.extend(row.iter().filter_map(|column| sums[*column].take()));
        }
        matrix.starts.push(matrix.values.len());
        matrix
    }

    fn multiply(&self, rows: Range<usize>, vector: &SharedNumbers, product: &SharedNumbers) {
        for i in rows {
            let range = self.starts[i]..self.starts[i + 1];
            let parts = self.values[range.clone()].iter().zip(&self.columns[range]);
            product.set(i, parts.map(|(a, column)| a * vector.get(*column as usize)).sum());
        }
    }
}

struct Vectors {
    x: SharedNumbers,
    z: SharedNumbers,
    p: SharedNumbers,
    q: SharedNumbers,
    r: SharedNumbers,
}

fn dot(rows: Range<usize>, a: &SharedNumbers, b: &SharedNumbers) -> f64 {
    rows.map(|i| a.get(i) * b.get(i)).sum()
}

impl Vectors {
    /// z = A^-1 x, nearly.
    fn solve(&self, matrix: &SparseMatrix, team: &Team, thread: usize, rows: &Range<usize>) {
        let Self { x, z, p, q, r } = self;
        for i in rows.clone() {
            q.set(i, 0.0);
            z.set(i, 0.0);
            r.set(i, x.get(i));
            p.set(i, x.get(i));
        }
        let mut rho = team.sum(thread, dot(rows.clone(), r, r));
        for _ in 0..INNER {
            matrix.multiply(rows.clone(), p, q);
            let before = rho;
            let alpha = rho / team.sum(thread, dot(rows.clone(), p, q));
            for i in rows.clone() {
                z.set(i, z.get(i) + alpha * p.get(i));
                r.set(i, r.get(i) - alpha * q.get(i));
            }
            rho = team.sum(thread, dot(rows.clone(), r, r));
            let beta = rho / before;
            rows.clone().for_each(|i| p.set(i, r.get(i) + beta * p.get(i)));
            team.meet();
        }
    }
}

fn main() {
    let (class, team) = npb::arguments("SWAB");
    let class = match class {
        'S' => S,
        'W' => W,
        'A' => A,
        _ => B,
    };
    let (matrix, rows) = (SparseMatrix::new(&class), class.rows);
    let vector = || SharedNumbers::new(rows);
    let all = Vectors { x: vector(), z: vector(), p: vector(), q: vector(), r: vector() };
    (0..rows).for_each(|i| all.x.set(i, 1.0));
    let (zeta, done) = (SharedNumbers::new(1), AtomicI32::new(0));

    let mut region = CrashRegion::default();
    let named = [("x", &all.x), ("z", &all.z), ("p", &all.p), ("q", &all.q), ("r", &all.r)];
    // SAFETY: all are atomics, and stay to the end.
    unsafe {
        for (name, vector) in named {
            region.critical_data(name, vector.pointer(), rows);
        }
        region.consistent_data("done", done.as_ptr(), 1);
    }
    let first = region.crash_restore() as i32 + 1;
    if !(1..=class.iterations + 1).contains(&first) {
        println!("iteration {} is none of this class", first - 1);
        std::process::exit(1);
    }
    write_back_invalidate_cache();
    region.start_crash();
    team.run(|thread| {
        let own = team.share(thread, rows);
        for it in first..=class.iterations {
            all.solve(&matrix, &team, thread, &own);
            let xz = team.sum(thread, dot(own.clone(), &all.x, &all.z));
            let length = 1.0 / team.sum(thread, dot(own.clone(), &all.z, &all.z)).sqrt();
            own.clone().for_each(|i| all.x.set(i, length * all.z.get(i)));
            team.meet();
            if thread == 0 {
                zeta.set(0, class.shift + 1.0 / xz);
                done.store(it, Ordering::Relaxed);
                cache_line_write_back(&done);
            }
            team.meet();
        }
    });
    region.end_crash();
    let zeta = zeta.get(0);
    let good = ((zeta - class.zeta) / class.zeta).abs() <= 1e-10;
    let verdict = if good { "successful" } else { "FAILED" };
    println!("zeta {zeta:.13}, published {:.13}: verification {verdict}", class.zeta);
    std::process::exit(i32::from(!good));
}
