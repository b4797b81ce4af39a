//! `npb-cg`: the smallest eigenvalue of a random sparse matrix by inverse iteration, each system
//! solved by 25 steps of conjugate gradients (RNR-94-007, section 2.2.3). The matrix fills the
//! memory and is only read; 16 bytes an element here, where the original has 12. What the matrix is
//! made of stays, as in the original's static arrays, and counts for the size: 16 bytes an element
//! drawn and 24 a row, on the program's own heap.
//!
//! ```text
//! words: | row starts, n + 1 | columns | values | x | z | p | q | r |
//! ```

use super::{compare, finite, iterations, must_verify, Random};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::{of_hundredths, InstructionPace, WorkloadPace};
use crate::random::mix;
use crate::spec::WorkloadSpec;
use crate::team::{digest, get, set, MeetingSums, NumericalKernel};

/// Steps of conjugate gradients in each outer iteration.
const INNER: u64 = 25;
/// Rows a unit.
const ROWS: usize = 16;
/// Rows, elements drawn a row and shift of the classes S, W, A, B, C, D and E (NPB 3.4's problem
/// definitions).
const CLASSES: [(usize, usize, f64); 7] = [
    (1_400, 7, 10.0),
    (7_000, 8, 12.0),
    (14_000, 11, 20.0),
    (75_000, 13, 60.0),
    (150_000, 15, 110.0),
    (1_500_000, 21, 500.0),
    (9_000_000, 26, 1_500.0),
];
/// Least of the eigenvalues drawn.
const CONDITION: f64 = 0.1;
/// Class S's eigenvalue estimate (NPB 3.4, `cg.f`), and how near it must come.
const ZETA: (f64, f64) = (8.597_177_507_864_8, 1e-10);

/// The workload; see the module. The unit of work is one element of the matrix multiplied.
#[derive(Debug)]
pub struct Cg {
    rows: usize,
    shift: f64,
    elements: usize,
    lists: Lists,
    /// Products with the matrix, in all.
    products: u64,
    verify: bool,
    /// Digest of the matrix as written.
    matrix: u64,
}

/// Stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgStage {
    /// `z = 0, r = p = x`; sums `x x`.
    Start,
    /// `q = A p`; sums `p q`.
    Product,
    /// `z += a p, r -= a q`; sums `r r`.
    Update,
    /// `p = r + b p`.
    Direction,
    /// `q = A z`; sums `x z` and `z z`.
    Check,
    /// `x = z / |z|`.
    Normalise,
}

/// What each thread knows.
#[derive(Debug, Default)]
pub struct CgThread {
    rho: f64,
    alpha: f64,
    beta: f64,
    scale: f64,
    inner: u64,
    outer: u64,
    products: u64,
    zeta: f64,
}

impl Cg {
    /// The workload as specified; the matrix with its vectors and lists has its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = (spec.size.bytes(spec.fast).0 / 8) as usize;
        let rows_of =
            |drawn: usize| words / (2 * (drawn * (drawn + 1) + 1) + 6 + 2 * (drawn + 1) + 3);
        let fits = CLASSES.iter().rev().find(|c| rows_of(c.1) >= c.0).unwrap_or(&CLASSES[0]);
        let (rows, drawn, shift) = match spec.class_s {
            true => CLASSES[0],
            false => (rows_of(fits.1).max(4 * fits.1), fits.1, fits.2),
        };
        let mut lists = Lists::new(rows, drawn, spec.seed);
        let mut elements = 0;
        lists.each_row(shift, |_, row| elements += row.len(), |_, _, _| {});
        // Class S: 15 outer iterations of 25 steps and a check.
        let products = iterations(spec, elements, 15 * (INNER + 1));
        Self { rows, shift, elements, lists, products, verify: must_verify(spec), matrix: 0 }
    }

    fn vector(&self, number: usize) -> usize {
        self.rows + 1 + 2 * self.elements + number * self.rows
    }

    /// Row `row` of the matrix times the vector at `from`; and the elements it has.
    #[inline(always)]
    fn product<M: WordMemory + ?Sized>(&self, memory: &M, row: usize, from: usize) -> (f64, u64) {
        let (columns, values) = (self.rows + 1, self.rows + 1 + self.elements);
        let (start, end) = (memory.load(row) as usize, memory.load(row + 1) as usize);
        let mut sum = 0.0;
        for k in start..end {
            sum += get(memory, values + k) * get(memory, from + memory.load(columns + k) as usize);
        }
        (sum, (end - start) as u64)
    }

    fn digest_of_matrix<M: WordMemory + ?Sized>(&self, memory: &M) -> u64 {
        (0..self.rows + 1 + 2 * self.elements).fold(0, |sum, word| mix(sum ^ memory.load(word)))
    }
}

/// What the matrix is made of: one sparse vector a row, and which of them have each row.
#[derive(Debug)]
struct Lists {
    /// Places in `columns` and `values` a vector.
    stride: usize,
    /// [`NONE`] behind a vector's last element.
    columns: Vec<u32>,
    values: Vec<f64>,
    /// Of each row, where its places in `users` begin.
    starts: Vec<u32>,
    /// Places in `columns`, ascending.
    users: Vec<u32>,
    /// Of each vector.
    weights: Vec<f64>,
    /// Of each column of the row at hand, and for which row it is.
    sums: Vec<f64>,
    seen: Vec<u32>,
}

/// Bytes before each of the [`Lists`], and all.
struct Offsets {
    columns: usize,
    values: usize,
    starts: usize,
    users: usize,
    weights: usize,
    sums: usize,
    seen: usize,
    end: usize,
}

/// No column.
const NONE: u32 = u32::MAX;

impl Lists {
    /// A vector has so many elements drawn at distinct random places, and one half at its own row.
    fn new(rows: usize, drawn: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let _first_number_is_not_used = random.draw();
        let power = rows.next_power_of_two() as f64;
        let stride = drawn + 1;
        let (mut columns, mut values) =
            (Vec::with_capacity(rows * stride), Vec::with_capacity(rows * stride));
        let mut vector: Vec<(u32, f64)> = Vec::with_capacity(stride);
        for row in 0..rows {
            vector.clear();
            while vector.len() < drawn {
                let (value, place) = (random.draw(), (random.draw() * power) as usize);
                if place < rows && vector.iter().all(|e| e.0 as usize != place) {
                    vector.push((place as u32, value));
                }
            }
            match vector.iter_mut().find(|e| e.0 as usize == row) {
                Some(own) => own.1 = 0.5,
                None => vector.push((row as u32, 0.5)),
            }
            vector.resize(stride, (NONE, 0.0));
            columns.extend(vector.iter().map(|e| e.0));
            values.extend(vector.iter().map(|e| e.1));
        }
        let present = || columns.iter().enumerate().filter(|(_, c)| **c != NONE);
        let mut starts = vec![0u32; rows + 1];
        present().for_each(|(_, c)| starts[*c as usize + 1] += 1);
        (0..rows).for_each(|row| starts[row + 1] += starts[row]);
        // Filled from its own start, each row ends where the next begins.
        let mut users = vec![0u32; starts[rows] as usize];
        for (place, column) in present() {
            let at = &mut starts[*column as usize];
            users[*at as usize] = place as u32;
            *at += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
        let ratio = CONDITION.powf(1.0 / rows as f64);
        let weights = std::iter::successors(Some(1.0), |w| Some(w * ratio)).take(rows).collect();
        let (sums, seen) = (vec![0.0; rows], vec![NONE; rows]);
        Self { stride, columns, values, starts, users, weights, sums, seen }
    }

    /// Where each would begin were they one behind the other, in the order in which they are
    /// filled.
    fn offsets(&self) -> Offsets {
        let columns = 0;
        let values = columns + 4 * self.columns.len();
        let starts = values + 8 * self.values.len();
        let users = starts + 4 * self.starts.len();
        let weights = users + 4 * self.users.len();
        let sums = weights + 8 * self.weights.len();
        let seen = sums + 8 * self.sums.len();
        Offsets {
            columns,
            values,
            starts,
            users,
            weights,
            sums,
            seen,
            end: seen + 4 * self.seen.len(),
        }
    }

    /// Shows each row of `sum of w_i x_i x_i' + (condition - shift) I`, columns ascending; `w`
    /// falls from 1 to the condition. What is read and written of the lists for it is reported by
    /// offset and length, as if they lay one behind the other.
    fn each_row(
        &mut self,
        shift: f64,
        mut show: impl FnMut(usize, &[(u32, f64)]),
        touch: impl Fn(usize, usize, bool),
    ) {
        let at = self.offsets();
        let (sums, seen) = (&mut self.sums, &mut self.seen);
        seen.fill(NONE);
        let mut row: Vec<(u32, f64)> = Vec::new();
        for r in 0..self.starts.len() - 1 {
            row.clear();
            touch(at.starts + 4 * r, 8, false);
            let count = (self.starts[r + 1] - self.starts[r]) as usize;
            touch(at.users + 4 * self.starts[r] as usize, 4 * count, false);
            for place in &self.users[self.starts[r] as usize..self.starts[r + 1] as usize] {
                let (place, i) = (*place as usize, *place as usize / self.stride);
                let scaled = self.values[place] * self.weights[i];
                let vector = i * self.stride..(i + 1) * self.stride;
                touch(at.weights + 8 * i, 8, false);
                touch(at.columns + 4 * vector.start, 4 * self.stride, false);
                touch(at.values + 8 * vector.start, 8 * self.stride, false);
                for (column, value) in self.columns[vector.clone()].iter().zip(&self.values[vector])
                {
                    if *column == NONE {
                        break;
                    }
                    let c = *column as usize;
                    touch(at.seen + 4 * c, 4, seen[c] as usize != r);
                    touch(at.sums + 8 * c, 8, true);
                    if seen[c] as usize != r {
                        (seen[c], sums[c]) = (r as u32, 0.0);
                        row.push((*column, 0.0));
                    }
                    sums[c] += scaled * value;
                    if c == r && i == r {
                        sums[c] += CONDITION - shift;
                    }
                }
            }
            row.sort_unstable_by_key(|e| e.0);
            row.iter_mut().for_each(|e| e.1 = sums[e.0 as usize]);
            show(r, &row);
        }
    }
}

impl NumericalKernel for Cg {
    type Stage = CgStage;
    type Own = CgThread;

    fn words(&self) -> usize {
        self.vector(5)
    }

    fn pace(&self) -> WorkloadPace {
        // Of `npb-cg,fast=64MiB` callgrind counts 741.3 million in `Cg::new`, which draws lists of
        // 0.94 million words by 61.2 and goes over them once, and 952.3 in `Cg::prepare`: 13 for
        // each of 9.27 million loads, which only check, 680.1 to go over the lists again, of which
        // 12.67 million lines are read each time, and the rest for 9.44 million stores.
        let store = of_hundredths(1610);
        let preparation = InstructionPace {
            load: of_hundredths(1300),
            store,
            heap: of_hundredths(6520),
            own: of_hundredths(5370),
            fill: store,
        };
        WorkloadPace { preparation, roi: InstructionPace::even(580) }
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        memory.reserve_bytes(self.lists.offsets().end as u64);
        if memory.listens() {
            // `new` has drawn the rows once, to count their elements.
            self.lists.each_row(
                self.shift,
                |_, _| {},
                |at, bytes, write| memory.own(at as u64, bytes as u64, write),
            );
        }
        let (columns, values) = (self.rows + 1, self.rows + 1 + self.elements);
        let mut next = 0;
        memory.store(0, 0);
        let show = |r: usize, row: &[(u32, f64)]| {
            for (column, value) in row {
                memory.store(columns + next, u64::from(*column));
                set(memory, values + next, *value);
                next += 1;
            }
            memory.store(r + 1, next as u64);
        };
        if memory.listens() {
            self.lists.each_row(self.shift, show, |at, bytes, write| {
                memory.own(at as u64, bytes as u64, write)
            });
        } else {
            self.lists.each_row(self.shift, show, |_, _, _| {});
        }
        for word in self.vector(0)..self.words() {
            set(memory, word, if word < self.vector(1) { 1.0 } else { 0.0 });
        }
        self.matrix = self.digest_of_matrix(memory);
    }

    fn begin(&self) -> (CgStage, CgThread) {
        (CgStage::Start, CgThread::default())
    }

    fn units(&self, _: CgStage) -> usize {
        self.rows.div_ceil(ROWS)
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut CgThread,
        stage: CgStage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64 {
        let [x, z, p, q, r] = [0, 1, 2, 3, 4].map(|v| self.vector(v));
        let mut elements = 0;
        for i in unit * ROWS..((unit + 1) * ROWS).min(self.rows) {
            match stage {
                CgStage::Start => {
                    let value = get(memory, x + i);
                    set(memory, z + i, 0.0);
                    set(memory, r + i, value);
                    set(memory, p + i, value);
                    sums[0] += value * value;
                }
                CgStage::Product => {
                    let (product, count) = self.product(memory, i, p);
                    set(memory, q + i, product);
                    sums[0] += get(memory, p + i) * product;
                    elements += count;
                }
                CgStage::Update => {
                    set(memory, z + i, get(memory, z + i) + own.alpha * get(memory, p + i));
                    let rest = get(memory, r + i) - own.alpha * get(memory, q + i);
                    set(memory, r + i, rest);
                    sums[0] += rest * rest;
                }
                CgStage::Direction => {
                    set(memory, p + i, get(memory, r + i) + own.beta * get(memory, p + i));
                }
                CgStage::Check => {
                    let (product, count) = self.product(memory, i, z);
                    set(memory, q + i, product);
                    let value = get(memory, z + i);
                    sums[0] += get(memory, x + i) * value;
                    sums[1] += value * value;
                    elements += count;
                }
                CgStage::Normalise => set(memory, x + i, own.scale * get(memory, z + i)),
            }
        }
        elements
    }

    fn next(&self, own: &mut CgThread, stage: CgStage, met: MeetingSums) -> Option<CgStage> {
        let product = matches!(stage, CgStage::Product | CgStage::Check);
        own.products += u64::from(product);
        Some(match stage {
            CgStage::Start => {
                (own.rho, own.inner) = (met.sums[0], 0);
                CgStage::Product
            }
            CgStage::Product => {
                own.alpha = own.rho / met.sums[0];
                CgStage::Update
            }
            CgStage::Update => {
                own.beta = met.sums[0] / own.rho;
                own.rho = met.sums[0];
                own.inner += 1;
                if met.over || own.products >= self.products {
                    return None;
                }
                if own.inner == INNER {
                    CgStage::Check
                } else {
                    CgStage::Direction
                }
            }
            CgStage::Direction => CgStage::Product,
            CgStage::Check => {
                own.zeta = self.shift + 1.0 / met.sums[0];
                own.scale = 1.0 / met.sums[1].sqrt();
                own.outer += 1;
                CgStage::Normalise
            }
            CgStage::Normalise if met.over || own.products >= self.products => return None,
            CgStage::Normalise => CgStage::Start,
        })
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &CgThread,
    ) -> Result<u64, WrongResult> {
        if self.digest_of_matrix(memory) != self.matrix {
            return Err(WrongResult {
                workload: "npb-cg",
                what: "the matrix is not what was written".to_owned(),
            });
        }
        if self.verify {
            compare("npb-cg", "zeta", own.zeta, ZETA.0, ZETA.1)?;
        }
        let z = self.vector(1);
        let length: f64 = (0..self.rows).map(|i| get(memory, z + i).powi(2)).sum();
        finite("npb-cg", "the solution", &[length, own.zeta])?;
        Ok(digest(&[length, own.zeta]))
    }
}
