//! Real kernels on the staging pipeline: stencils over a matrix, relaxed band by band, and a
//! blocked matrix product.
//!
//! `stage_kernels slow=NODE,GB/S fast=NODE,GB/S cache=KIB threads=N mib=N block=KIB
//! cases=KERNEL:PASSES[,...]`
//!
//! A kernel is `five` or `nine` (points of the stencil; PASSES sweeps over a band before the next;
//! results go back) or `product` (C = A B; A is gone over once for each eight columns of B, so that
//! B has 8 PASSES columns). Each case runs in place and with automatic threads. How long a thread
//! computes is measured before, on a block in the cache. Prints a row a case: what the model said
//! before the run, both times, their ratio, and a digest of the results, which must be the same.

use std::hint::black_box;
use std::sync::OnceLock;
use terrace_migrate::staging::{
    copy, decide, past_caches, stage_read, stage_update, Costs, StagingDecision, StagingMode,
    StagingOptions, StagingReport, StagingWork, Threads,
};
use terrace_sys::{now, AnonymousMapping, MappingPages};
use terrace_types::{Bytes, BytesPerSec, CpuId, NodeId};

/// Elements of a row of either matrix.
const COLUMNS: usize = 1024;
/// Columns of B that are multiplied in one pass.
const STRIP: usize = 8;

/// One sweep: each inner point becomes the mean of its neighbours; new values of the row above, old
/// ones elsewhere.
fn relax(band: &mut [f32], nine: bool) {
    let mut old = [0_f32; COLUMNS];
    for row in 1..(band.len() / COLUMNS).saturating_sub(1) {
        let (above, rest) = band.split_at_mut(row * COLUMNS);
        let (here, below) = rest.split_at_mut(COLUMNS);
        let (above, below) = (&above[(row - 1) * COLUMNS..], &below[..COLUMNS]);
        old.copy_from_slice(here);
        let points = here[1..COLUMNS - 1]
            .iter_mut()
            .zip(old.windows(3))
            .zip(above.windows(3).zip(below.windows(3)));
        if nine {
            points.for_each(|((x, o), (a, b))| {
                *x = 0.125 * (a[0] + a[1] + a[2] + o[0] + o[2] + b[0] + b[1] + b[2]);
            });
        } else {
            points.for_each(|((x, o), (a, b))| *x = 0.25 * (a[1] + o[0] + o[2] + b[1]));
        }
    }
}

/// Rows of A times a strip of B (eight columns, interleaved).
fn multiply(a: &[f32], strip: &[[f32; STRIP]], c: &mut Vec<f32>) {
    for row in a.chunks_exact(COLUMNS) {
        let mut sums = [0_f32; STRIP];
        for (x, b) in row.iter().zip(strip) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += x * b;
            }
        }
        c.extend_from_slice(&sums);
    }
}

fn element(at: usize) -> f32 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) as f32 / 1048576.0
}

/// Every row the same but for its first element, so that it costs little in the lab.
fn fill(data: &mut [f32]) {
    let row: [f32; COLUMNS] = std::array::from_fn(element);
    for (number, to) in data.chunks_mut(COLUMNS).enumerate() {
        to.copy_from_slice(&row[..to.len()]);
        to[0] = element(number + COLUMNS);
    }
}

/// Of rows in their order.
fn digest(values: &[f32], before: u64) -> u64 {
    values.chunks(COLUMNS).fold(before, |sum, row| {
        let bits = row.iter().fold(0_u32, |sum, x| sum.wrapping_add(x.to_bits()));
        (sum ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3)
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kernel {
    Five,
    Nine,
    Product,
}

struct Setup {
    slow: NodeId,
    fast: NodeId,
    threads: u32,
    block: usize,
    costs: Costs,
}

/// Nanoseconds a byte of `work` on so many bytes, the best of five tries.
fn pace(bytes: usize, mut work: impl FnMut()) -> f64 {
    let mut one = || {
        let began = now();
        (0..20).for_each(|_| work());
        now().since(began).get() as f64 / 20.0 / bytes as f64
    };
    (0..5).map(|_| one()).fold(f64::INFINITY, f64::min)
}

fn compute(kernel: Kernel, strips: &[Vec<[f32; STRIP]>]) -> f64 {
    let mut band: Vec<f32> = (0..COLUMNS * 5).map(element).collect();
    let bytes = band.len() * 4;
    match kernel {
        Kernel::Product => pace(bytes, || {
            let mut c = Vec::with_capacity(5 * STRIP);
            multiply(black_box(&band), &strips[0], &mut c);
            black_box(c);
        }),
        // Of the five rows three are worked on.
        _ => pace(bytes * 3 / 5, || relax(black_box(&mut band), kernel == Kernel::Nine)),
    }
}

impl Setup {
    fn options(&self, threads: Threads, passes: u32, compute: f64) -> StagingOptions {
        StagingOptions {
            slow: Some(self.slow),
            passes: f64::from(passes),
            compute_ns_per_byte: compute,
            costs: Some(self.costs),
            cpus: (0..self.threads).map(|cpu| CpuId(cpu as _)).collect(),
            ..StagingOptions::new(self.fast, threads)
        }
    }

    fn run(
        &self,
        data: &mut [f32],
        kernel: Kernel,
        passes: u32,
        o: &StagingOptions,
    ) -> Result<(StagingReport, u64), String> {
        fill(data);
        // What was just written lies dirty in the cache and would be written back during the run.
        black_box(data.iter().step_by(16).sum::<f32>());
        let blocks: Vec<_> = (0..data.len())
            .step_by(self.block)
            .map(|at| at..(at + self.block).min(data.len()))
            .collect();
        if kernel != Kernel::Product {
            let sweeps = |_: usize, band: &mut [f32]| {
                (0..passes).for_each(|_| relax(band, kernel == Kernel::Nine))
            };
            let report = stage_update(data, blocks, o, sweeps).map_err(|e| e.to_string())?;
            return Ok((report, digest(data, 0)));
        }
        let strips = strips(passes);
        let results: Vec<OnceLock<Vec<f32>>> = blocks.iter().map(|_| OnceLock::new()).collect();
        let report = stage_read(data, blocks, o, |block, a| {
            let mut c = Vec::with_capacity(a.len() / COLUMNS * STRIP * strips.len());
            strips.iter().for_each(|strip| multiply(a, strip, &mut c));
            // A block is worked on once, so that nothing is there yet.
            let _first = results[block].set(c);
        })
        .map_err(|e| e.to_string())?;
        Ok((report, results.iter().filter_map(OnceLock::get).fold(0, |sum, c| digest(c, sum))))
    }

    fn case(&self, data: &mut [f32], name: &str, passes: u32) -> Result<(), String> {
        let kernel = match name {
            "five" => Kernel::Five,
            "nine" => Kernel::Nine,
            "product" => Kernel::Product,
            _ => return Err(format!("{name} is no kernel; say five, nine or product")),
        };
        let compute = compute(kernel, &strips(1));
        let work = StagingWork {
            blocks: data.len().div_ceil(self.block),
            largest: Bytes((self.block * 4) as u64),
            total: Bytes((data.len() * 4) as u64),
            passes: f64::from(passes),
            compute_ns_per_byte: compute,
            back: kernel != Kernel::Product,
            threads: self.threads,
            room: Bytes::gib(1),
            one_tier: false,
            read_first: !past_caches(),
            stay: false,
        };
        let expected = match decide(Some(&self.costs), &work) {
            StagingDecision::Staged(s) => {
                format!("{:.2} times", s.in_place.get() as f64 / s.expected.get() as f64)
            }
            StagingDecision::InPlace(_) => "in place".to_owned(),
        };
        let (slow, first) = self.run(
            data,
            kernel,
            passes,
            &self.options(Threads::InPlace(self.threads), passes, compute),
        )?;
        let (auto, second) = self.run(
            data,
            kernel,
            passes,
            &self.options(Threads::Auto(self.threads), passes, compute),
        )?;
        if first != second {
            return Err(format!(
                "{name}: results differ, {first:x} in place and {second:x} staged"
            ));
        }
        let ms = |report: &StagingReport| report.took.get() as f64 / 1e6;
        println!(
            "| {name} | {passes} | {:.2} | {expected} | {} | {}:{} | {:.2} | {:.2} | {:.2} | \
                {first:x} |",
            1.0 / compute,
            if auto.mode == StagingMode::Staged { "staged" } else { "in place" },
            auto.threads - auto.migrators,
            auto.migrators,
            ms(&slow),
            ms(&auto),
            ms(&slow) / ms(&auto),
        );
        Ok(())
    }
}

fn strips(passes: u32) -> Vec<Vec<[f32; STRIP]>> {
    let value = |strip: u32, row: usize, column: usize| {
        element((strip as usize * COLUMNS + row) * STRIP + column + 7)
    };
    let strip =
        |s| (0..COLUMNS).map(|row| std::array::from_fn(|column| value(s, row, column))).collect();
    (0..passes).map(strip).collect()
}

fn all(arguments: &[String]) -> Result<(), String> {
    let text = |name: &str| {
        let of = |a: &'_ String| {
            a.strip_prefix(name).and_then(|v| v.strip_prefix('=')).map(str::to_owned)
        };
        arguments
            .iter()
            .find_map(of)
            .ok_or_else(|| format!("{name}= is missing; see the head of this file"))
    };
    let number =
        |text: &str| text.trim().parse::<f64>().map_err(|_| format!("{text} is no number"));
    let node = |name: &str| -> Result<_, String> {
        let text = text(name)?;
        let (id, rate) = text.split_once(',').ok_or_else(|| format!("{name}=NODE,GB/S"))?;
        Ok((NodeId(number(id)? as u16), BytesPerSec((number(rate)? * 1e9) as u64)))
    };
    let ((slow, slow_rate), (fast, fast_rate)) = (node("slow")?, node("fast")?);
    let (from, mut to) = ([1_u8; 8 << 10], [0_u8; 8 << 10]);
    let copying = pace(from.len(), || {
        // SAFETY: both are arrays of so many bytes, and different.
        unsafe { copy(black_box(from.as_ptr()), black_box(to.as_mut_ptr()), from.len()) };
    });
    let costs = Costs {
        slow: slow_rate,
        slow_thread: slow_rate,
        fast: fast_rate,
        fast_thread: fast_rate,
        copy_thread: BytesPerSec((1e9 / copying) as u64).min(slow_rate),
        cache: Bytes((number(&text("cache")?)? as u64) << 10),
        cache_thread: fast_rate,
        moves: terrace_migrate::MoveCosts::default(),
    };
    let block = (number(&text("block")?)? as usize * 256).next_multiple_of(COLUMNS);
    let setup = Setup { slow, fast, threads: number(&text("threads")?)? as u32, block, costs };
    let bytes = Bytes::mib(number(&text("mib")?)? as u64);
    let memory = AnonymousMapping::new(bytes, MappingPages::Base).map_err(|e| e.to_string())?;
    memory.bind(slow).map_err(|e| e.to_string())?;
    memory.prefault(0..memory.len()).map_err(|e| e.to_string())?;
    // SAFETY: the mapping is aligned to a page, touched, this long, and nobody else's while it
    // lives.
    let data = unsafe {
        std::slice::from_raw_parts_mut(memory.as_ptr().cast::<f32>(), bytes.get() as usize / 4)
    };
    println!(
        "| kernel | passes | GB/s a thread computes | model | mode | workers:migrators | in \
        place ms | auto ms | ratio | digest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for case in text("cases")?.split(',') {
        let (name, passes) = case.split_once(':').ok_or("a case is KERNEL:PASSES")?;
        setup.case(data, name, number(passes)? as u32)?;
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(why) = all(&arguments) {
        eprintln!("stage_kernels: {why}");
        std::process::exit(1);
    }
}
