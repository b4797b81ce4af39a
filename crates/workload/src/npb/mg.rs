//! `npb-mg`: V-cycles of a multigrid solver for a Poisson problem on a periodic grid, its right
//! side zero but for twenty charges (RNR-94-007, section 2.2.2). The benchmark's grids are powers
//! of two on a side; where no class is asked for, sides may be three times a power of two as well,
//! so that sizes come in smaller steps.
//!
//! ```text
//! words: | v | for each grid, finest first: u, r |
//! ```

use super::{compare, finite, iterations, must_verify, Random};
use crate::algorithm::WrongResult;
use crate::memory::WordMemory;
use crate::pace::WorkloadPace;
use crate::random::mix;
use crate::spec::WorkloadSpec;
use crate::team::{digest, get, set, MeetingSums, NumericalKernel};

/// Weights of a point, its 6 face, 12 edge and 8 corner neighbours: the operator, the smoother of
/// classes S, W and A, and the restriction.
const OPERATOR: [f64; 4] = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTHER: [f64; 4] = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const RESTRICTION: [f64; 4] = [0.5, 0.25, 0.125, 0.0625];
/// Charges of either sign.
const CHARGES: usize = 10;
/// Class S's residual norm (NPB 3.4, `mg.f`), and how near it must come.
const NORM: (f64, f64) = (0.530_770_700_573_4e-4, 1e-8);

/// One grid.
#[derive(Debug, Clone, Copy)]
struct Grid {
    sides: [usize; 3],
    u: usize,
    r: usize,
}

impl Grid {
    const fn points(&self) -> usize {
        self.sides[0] * self.sides[1] * self.sides[2]
    }

    /// Offset of the row of points with these second and third coordinates, each counted from one
    /// less.
    fn row(&self, y: usize, z: usize) -> usize {
        let [nx, ny, nz] = self.sides;
        (((z + nz - 1) % nz) * ny + (y + ny - 1) % ny) * nx
    }

    /// Offsets of a row's four face neighbours and of its four edge neighbours.
    fn around(&self, y: usize, z: usize) -> [[usize; 4]; 2] {
        let at = |dy: usize, dz: usize| self.row(y + dy, z + dz);
        [[at(0, 1), at(2, 1), at(1, 0), at(1, 2)], [at(0, 0), at(2, 0), at(0, 2), at(2, 2)]]
    }
}

/// The workload; see the module. The unit of work is one grid point visited.
#[derive(Debug)]
pub struct Mg {
    /// Finest first.
    grids: Vec<Grid>,
    seed: u64,
    cycles: u64,
    verify: bool,
    charges: u64,
}

/// Stages; a number is that of a grid, 0 the finest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MgStage {
    /// `r = v - A u` on the finest grid; sums `r r`.
    Residual,
    /// `r` of this grid from the finer one's.
    Restrict(usize),
    /// `u = S r` on the coarsest.
    Coarsest,
    /// `u = Q u'` from the coarser grid; added on the finest.
    Interpolate(usize),
    /// `r = r - A u`; on the finest `v - A u`.
    Correct(usize),
    /// `u = u + S r`.
    Smooth(usize),
}

/// What each thread has: cycles done, the norm, and two rows of sums.
#[derive(Debug, Default)]
pub struct MgThread {
    cycles: u64,
    norm: f64,
    faces: Vec<f64>,
    edges: Vec<f64>,
}

impl Mg {
    /// The workload as specified; all grids together have its size.
    #[must_use]
    pub fn new(spec: &WorkloadSpec) -> Self {
        let words = spec.size.bytes(spec.fast).0 / 8;
        let sides = if spec.class_s { [32; 3] } else { nearest(words) };
        let mut grids = Vec::new();
        let (mut sides, mut at) = (sides, sides.iter().product::<usize>());
        loop {
            let points: usize = sides.iter().product();
            grids.push(Grid { sides, u: at, r: at + points });
            at += 2 * points;
            if sides.iter().any(|n| n % 2 == 1 || *n <= 2) {
                break;
            }
            sides = sides.map(|n| n / 2);
        }
        // A cycle visits the finest grid for residual, interpolation and smoothing, and the others
        // for half as much again.
        let each = 4 * grids[0].points();
        let cycles = iterations(spec, each, 4);
        Self { grids, seed: spec.seed, cycles, verify: must_verify(spec), charges: 0 }
    }

    /// Weighted sums of all neighbours of a row's points at `from`; `show` is given each.
    fn stencil<M: WordMemory + ?Sized>(
        memory: &M,
        own: &mut MgThread,
        grid: &Grid,
        from: usize,
        weights: [f64; 4],
        (y, z): (usize, usize),
        mut show: impl FnMut(usize, f64),
    ) {
        let [faces, edges] = grid.around(y, z);
        let nx = grid.sides[0];
        let centre = from + grid.row(y + 1, z + 1);
        own.faces.resize(nx, 0.0);
        own.edges.resize(nx, 0.0);
        for x in 0..nx {
            let sum = |rows: [usize; 4]| {
                rows.into_iter().map(|row| get(memory, from + row + x)).sum::<f64>()
            };
            own.faces[x] = sum(faces);
            own.edges[x] = sum(edges);
        }
        let last = get(memory, centre + nx - 1);
        let (mut left, mut here) = (last, get(memory, centre));
        let first = here;
        for x in 0..nx {
            let (before, after) = ((x + nx - 1) % nx, (x + 1) % nx);
            let right = if after == 0 { first } else { get(memory, centre + after) };
            let value = weights[0] * here
                + weights[1] * (left + right + own.faces[x])
                + weights[2] * (own.edges[x] + own.faces[before] + own.faces[after])
                + weights[3] * (own.edges[before] + own.edges[after]);
            show(x, value);
            (left, here) = (here, right);
        }
    }

    fn residual<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut MgThread,
        level: usize,
        (y, z): (usize, usize),
        sums: &mut [f64; 2],
    ) {
        let grid = &self.grids[level];
        let row = grid.row(y + 1, z + 1);
        let right_side = if level == 0 { row } else { grid.r + row };
        Self::stencil(memory, own, grid, grid.u, OPERATOR, (y, z), |x, value| {
            let rest = get(memory, right_side + x) - value;
            set(memory, grid.r + row + x, rest);
            sums[0] += rest * rest;
        });
    }

    /// Coarse point `c` lies on fine point `2 c + 1`.
    fn restrict<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut MgThread,
        level: usize,
        (y, z): (usize, usize),
    ) {
        let (fine, coarse) = (&self.grids[level - 1], &self.grids[level]);
        let to = coarse.r + coarse.row(y + 1, z + 1);
        Self::stencil(
            memory,
            own,
            fine,
            fine.r,
            RESTRICTION,
            (2 * y + 1, 2 * z + 1),
            |x, value| {
                if x % 2 == 1 {
                    set(memory, to + x / 2, value);
                }
            },
        );
    }

    /// A fine row from the coarse rows it lies on or between.
    fn interpolate<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        level: usize,
        (y, z): (usize, usize),
    ) {
        let (fine, coarse) = (&self.grids[level], &self.grids[level + 1]);
        // An odd coordinate lies on one coarse coordinate, an even one between that and the one
        // before.
        let below = |n: usize| if n % 2 == 1 { (n / 2 + 1, n / 2 + 1) } else { (n / 2, n / 2 + 1) };
        let ((y0, y1), (z0, z1)) = (below(y), below(z));
        let all = [coarse.row(y0, z0), coarse.row(y1, z0), coarse.row(y0, z1), coarse.row(y1, z1)];
        let rows: &[usize] = match (y0 == y1, z0 == z1) {
            (true, true) => &all[..1],
            (false, true) => &all[..2],
            (true, false) => &all[1..3],
            (false, false) => &all,
        };
        let nx = coarse.sides[0];
        let at = |x: usize| {
            rows.iter().map(|row| get(memory, coarse.u + row + x)).sum::<f64>() / rows.len() as f64
        };
        let to = fine.u + fine.row(y + 1, z + 1);
        let put = |x: usize, value: f64| {
            let old = if level == 0 { get(memory, to + x) } else { 0.0 };
            set(memory, to + x, old + value);
        };
        let mut left = at(nx - 1);
        for x in 0..nx {
            let here = at(x);
            put(2 * x, 0.5 * (left + here));
            put(2 * x + 1, here);
            left = here;
        }
    }

    fn smooth<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut MgThread,
        level: usize,
        (y, z): (usize, usize),
    ) {
        let grid = &self.grids[level];
        let to = grid.u + grid.row(y + 1, z + 1);
        let coarsest = level + 1 == self.grids.len();
        Self::stencil(memory, own, grid, grid.r, SMOOTHER, (y, z), |x, value| {
            let old = if coarsest { 0.0 } else { get(memory, to + x) };
            set(memory, to + x, old + value);
        });
    }

    /// Where the charges are: the places of the ten largest and ten smallest random numbers.
    fn charges(&self) -> [Vec<usize>; 2] {
        let mut random = Random::new(self.seed);
        let (mut largest, mut smallest) = (Vec::new(), Vec::new());
        for point in 0..self.grids[0].points() {
            let drawn = random.draw();
            keep(&mut largest, (drawn, point));
            keep(&mut smallest, (-drawn, point));
        }
        [largest, smallest].map(|list| list.into_iter().map(|e| e.1).collect())
    }

    fn digest_of_charges<M: WordMemory + ?Sized>(&self, memory: &M) -> u64 {
        (0..self.grids[0].points()).fold(0, |sum, word| mix(sum ^ memory.load(word)))
    }
}

/// Keeps the largest few.
fn keep(list: &mut Vec<(f64, usize)>, new: (f64, usize)) {
    if list.len() == CHARGES && list[CHARGES - 1].0 >= new.0 {
        return;
    }
    let at = list.partition_point(|e| e.0 >= new.0);
    list.insert(at, new);
    list.truncate(CHARGES);
}

/// Sides, each two or three times a power of two and none twice another, whose grids together come
/// nearest to `words`.
fn nearest(words: u64) -> [usize; 3] {
    let sides = || (2..20).flat_map(|k| [1usize << k, 3 << (k - 1)]);
    let need = |s: &[usize; 3]| s.iter().product::<usize>() as f64 * (1.0 + 2.0 * 8.0 / 7.0);
    let distance = |s: &[usize; 3]| (need(s) / words.max(1) as f64).ln().abs();
    let all = sides().flat_map(|x| sides().flat_map(move |y| sides().map(move |z| [x, y, z])));
    all.filter(|[x, y, z]| x >= y && y >= z && *x <= 2 * z).fold([4; 3], |best, s| {
        if distance(&s) < distance(&best) {
            s
        } else {
            best
        }
    })
}

impl NumericalKernel for Mg {
    type Stage = MgStage;
    type Own = MgThread;

    fn words(&self) -> usize {
        self.grids.last().map_or(0, |g| g.r + g.points())
    }

    fn pace(&self) -> WorkloadPace {
        WorkloadPace::even(1298)
    }

    fn prepare<M: WordMemory + ?Sized>(&mut self, memory: &M) {
        for word in 0..self.words() {
            memory.store(word, 0);
        }
        for (charges, value) in self.charges().into_iter().zip([1.0, -1.0]) {
            charges.into_iter().for_each(|point| set(memory, point, value));
        }
        self.charges = self.digest_of_charges(memory);
    }

    fn begin(&self) -> (MgStage, MgThread) {
        (MgStage::Residual, MgThread::default())
    }

    /// A unit is a row of points of the grid that is written.
    fn units(&self, stage: MgStage) -> usize {
        let level = match stage {
            MgStage::Residual => 0,
            MgStage::Coarsest => self.grids.len() - 1,
            MgStage::Restrict(l)
            | MgStage::Interpolate(l)
            | MgStage::Correct(l)
            | MgStage::Smooth(l) => l,
        };
        let [_, ny, nz] = self.grids[level].sides;
        ny * nz
    }

    fn work<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &mut MgThread,
        stage: MgStage,
        unit: usize,
        sums: &mut [f64; 2],
    ) -> u64 {
        let at =
            |level: usize| (unit % self.grids[level].sides[1], unit / self.grids[level].sides[1]);
        let bottom = self.grids.len() - 1;
        let level = match stage {
            MgStage::Residual => 0,
            MgStage::Coarsest => bottom,
            MgStage::Restrict(l)
            | MgStage::Interpolate(l)
            | MgStage::Correct(l)
            | MgStage::Smooth(l) => l,
        };
        match stage {
            MgStage::Residual | MgStage::Correct(_) => {
                self.residual(memory, own, level, at(level), sums)
            }
            MgStage::Restrict(_) => self.restrict(memory, own, level, at(level)),
            MgStage::Coarsest | MgStage::Smooth(_) => self.smooth(memory, own, level, at(level)),
            MgStage::Interpolate(_) => self.interpolate(memory, level, at(level)),
        }
        self.grids[level].sides[0] as u64
    }

    fn next(&self, own: &mut MgThread, stage: MgStage, met: MeetingSums) -> Option<MgStage> {
        let bottom = self.grids.len() - 1;
        Some(match stage {
            MgStage::Residual => {
                own.norm = (met.sums[0] / self.grids[0].points() as f64).sqrt();
                if met.over || own.cycles == self.cycles {
                    return None;
                }
                own.cycles += 1;
                if bottom == 0 {
                    MgStage::Smooth(0)
                } else {
                    MgStage::Restrict(1)
                }
            }
            MgStage::Restrict(level) if level < bottom => MgStage::Restrict(level + 1),
            MgStage::Restrict(_) => MgStage::Coarsest,
            MgStage::Coarsest => MgStage::Interpolate(bottom - 1),
            MgStage::Interpolate(level) => MgStage::Correct(level),
            MgStage::Correct(level) => MgStage::Smooth(level),
            MgStage::Smooth(0) => MgStage::Residual,
            MgStage::Smooth(level) => MgStage::Interpolate(level - 1),
        })
    }

    fn finish<M: WordMemory + ?Sized>(
        &self,
        memory: &M,
        own: &MgThread,
    ) -> Result<u64, WrongResult> {
        if self.digest_of_charges(memory) != self.charges {
            return Err(WrongResult {
                workload: "npb-mg",
                what: "the charges are not what was written".to_owned(),
            });
        }
        if self.verify {
            compare("npb-mg", "the residual's norm", own.norm, NORM.0, NORM.1)?;
        }
        let finest = &self.grids[0];
        let length: f64 = (0..finest.points()).map(|i| get(memory, finest.u + i).powi(2)).sum();
        finite("npb-mg", "the solution", &[length, own.norm])?;
        Ok(digest(&[length]))
    }
}
